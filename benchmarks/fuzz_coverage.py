"""Reach of the corpus into each parser of outside bytes, speed of fuzzing it, and findings, if any.

Lines are those of the parser's own functions, in C++ by clang's source-based coverage, in Python by coverage.py. Lines
that bytes cannot reach are listed with the reason and do not count. Executions and edges are of a run of each target.
The input of a finding is kept in build/fuzz/findings, and the log of its run in build/fuzz/logs.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kit.common import ROOT, BenchmarkError, NotInstalledError, Row, arguments, result, run, table
from kit.fuzz_ledger import fuzzed
from kit.fuzz_parsers import NATIVE, PYTHON, UNREACHED, Parser

sys.path.insert(0, str(ROOT / "tools"))
import fuzz

NAME = "fuzz_coverage"
BAR = "each parser: lines covered (95 %), executions, findings 0 after mending; corpora replayed in CI"
UNIT = "share of lines"
LEAST_SHARE = 0.95
QUICK = ["packet", "hello", "commit_record", "manifest", "host_port"]
CHECKED = ["hello", "host_port"]
LINES_BUILD = fuzz.BUILD / "lines" / "tests"


class Covered(NamedTuple):
    """Lines of a parser: those that run, those that do not, and those of them that bytes cannot reach."""

    run: int
    missed: tuple[str, ...]
    excused: int

    @property
    def share(self) -> float:
        """Share of the lines that bytes can reach."""
        return self.run / max(1, self.run + len(self.missed))


def excused(file: str, line: int, source: Sequence[str]) -> bool:
    """Return true when a line is one that bytes cannot reach: it has one of the texts that are listed for its file."""
    return any(text in source[line - 1] for text in UNREACHED.get(file, {}))


def covered(lines: Mapping[tuple[str, int], bool]) -> Covered:
    """Sum up the lines of a parser by file and number."""
    sources = {file: (ROOT / file).read_text().splitlines() for file, _ in lines}
    missed = [(file, line) for (file, line), ran in lines.items() if not ran]
    beyond = [place for place in missed if excused(*place, sources[place[0]])]
    reached = tuple(f"{file}:{line}" for file, line in missed if (file, line) not in beyond)
    return Covered(sum(lines.values()), reached, len(beyond))


def llvm_tool(name: str) -> str:
    """The path of an LLVM tool; raises NotInstalledError."""
    for found in (shutil.which(name), *(shutil.which(f"{name}-{version}") for version in range(19, 13, -1))):
        if found:
            return found
    raise NotInstalledError(f"{name} is not installed: apt-get install llvm")


def native_lines(target: str, parser: Parser, programs: Path) -> Covered:
    """Replay a corpus in the build that counts, and look at the parser's functions."""
    program = programs / f"luwu_fuzz_{target}"
    with tempfile.TemporaryDirectory() as folder:
        raw, profile = Path(folder, "raw"), Path(folder, "profile")
        subprocess.run(
            [program, "-runs=0", ROOT / "tests" / "fuzz" / "corpus" / target],
            env={"LLVM_PROFILE_FILE": str(raw)}, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        subprocess.run([llvm_tool("llvm-profdata"), "merge", "-sparse", raw, "-o", profile], check=True)
        files = [ROOT / file for file in parser]
        export = [llvm_tool("llvm-cov"), "export", program, f"-instr-profile={profile}"]
        text = subprocess.run([*export, "-format=lcov", *files], stdout=subprocess.PIPE, check=True).stdout.decode()
        functions = json.loads(subprocess.run([*export, *files], stdout=subprocess.PIPE, check=True).stdout)
    spans: dict[str, list[tuple[str, int, int]]] = {}
    for function in functions["data"][0]["functions"]:
        first = function["regions"][0]
        spans.setdefault(function["filenames"][0], []).append((function["name"], first[0], first[2]))
    lines: dict[tuple[str, int], bool] = {}
    for record in text.split("end_of_record"):
        found = re.search(r"^SF:(.*)$", record, re.MULTILINE)
        if found is None:
            continue
        file = str(Path(found[1]).relative_to(ROOT))
        for number, count in re.findall(r"^DA:(\d+),(\d+)", record, re.MULTILINE):
            wanted = [
                span
                for span in spans.get(found[1], ())
                if span[1] <= int(number) <= span[2] and _is_of(span[0], parser[file])
            ]
            if wanted:
                lines[file, int(number)] = count != "0"
    if not lines:
        raise BenchmarkError(f"{target}: no line of {', '.join(parser)} is in the program")
    return covered(lines)


def _is_of(name: str, functions: Sequence[str] | None) -> bool:
    """Return true when a mangled name is one of the functions, or the file is the parser as a whole."""
    return functions is None or any(f"{len(each)}{each}" in name for each in functions)


def python_lines(target: str, parser: Parser) -> Covered:
    """Replay a corpus under coverage.py, and look at the parser's functions."""
    if importlib.util.find_spec("coverage") is None:
        raise NotInstalledError("coverage is not installed: pip install coverage")
    with tempfile.TemporaryDirectory() as folder:
        data, report = Path(folder, "data"), Path(folder, "report.json")
        coverage = [sys.executable, "-m", "coverage"]
        code = f"import tests.fuzz.python.replay as replay; replay.main({target!r})"
        script = Path(folder, "replay.py")
        script.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}\n")
        files = ",".join(str(ROOT / file) for file in parser)
        subprocess.run([*coverage, "run", f"--data-file={data}", f"--include={files}", script], cwd=ROOT, check=True)
        json_report = [*coverage, "json", f"--data-file={data}", "-o", report, "-q"]
        subprocess.run(json_report, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(report.read_text())["files"]
    lines: dict[tuple[str, int], bool] = {}
    for file, functions in parser.items():
        spans = _python_spans(ROOT / file, functions)
        for ran, key in ((True, "executed_lines"), (False, "missing_lines")):
            for number in found.get(file, {}).get(key, ()):
                if any(first < number <= last for first, last in spans):
                    lines[file, number] = ran
    if not lines:
        raise BenchmarkError(f"{target}: no line of {', '.join(parser)} ran")
    return covered(lines)


def _python_spans(path: Path, functions: Sequence[str] | None) -> list[tuple[int, int]]:
    """First and last lines of the functions; their definitions run at the import and do not count."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return [
        (node.lineno, node.end_lineno or node.lineno) for node in nodes if functions is None or node.name in functions
    ]


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    targets = found["targets"].values()
    yield (
        f"lines of each of {len(targets)} parsers of outside bytes that the fuzz corpus reaches",
        f"{min(target['share'] for target in targets):.1%} at least",
        f"{LEAST_SHARE:.0%}",
    )
    yield (
        f"findings in {sum(target['executions'] for target in targets):,} executions of these parsers on mutated bytes",
        f"{sum(target['finding'] for target in targets)}",
        "0",
    )


def main() -> int:
    """Cover, fuzz, and print a table."""
    options = arguments(__doc__ or NAME)
    everything = {**NATIVE, **PYTHON}
    seconds = options.effort(60.0, quick=1.0, check=0.0)
    targets = options.size(list(everything), quick=QUICK, check=CHECKED)

    def measure() -> dict[str, Any]:
        lines_of = guided = None
        if options.check and not LINES_BUILD.is_dir():  # which takes minutes to compile
            options.leave_out("parsers in C++", NotInstalledError(f"{LINES_BUILD} is not built: run without --check"))
        else:
            lines_of = fuzz.build_native("lines")
        if seconds:
            guided = fuzz.build_native("guided", "-DLUWU_SANITIZE=address,undefined")
        rows, measured, findings = [], {}, 0
        for target in targets:
            if target in PYTHON:
                found = python_lines(target, PYTHON[target])
            elif lines_of is not None:
                found = native_lines(target, NATIVE[target], lines_of)
            else:
                continue
            outcome = _fuzzed(target, guided, seconds) if seconds else fuzz.Outcome(0.0, 0, 0, False)
            findings += outcome.found
            total = found.run + len(found.missed)
            row = [target, total, found.share, found.excused, outcome.edges, outcome.executions, int(outcome.found)]
            rows.append(row)
            measured[target] = {
                "lines": total, "share": round(found.share, 4), "missed": found.missed, "unreachable": found.excused,
                "edges": outcome.edges, "executions": outcome.executions, "finding": outcome.found,
                "fuzzed": fuzzed(target)._asdict(),
            }  # fmt: skip
        table(["target", "lines", "covered", "unreachable", "edges", "executions", "findings"], rows)
        least = min(entry["share"] for entry in measured.values())
        details = {"targets": measured, "seconds": seconds, "lines that bytes cannot reach": UNREACHED}
        return result(
            NAME, ours=least, peer=None, bar=BAR, ok=least >= LEAST_SHARE, right=findings == 0, unit=UNIT,
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


def _fuzzed(target: str, native: Path | None, seconds: float) -> fuzz.Outcome:
    corpus = ROOT / "tests" / "fuzz" / "corpus" / target
    findings, logs = fuzz.BUILD / "findings" / target, fuzz.BUILD / "logs"
    findings.mkdir(parents=True, exist_ok=True)
    logs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=fuzz.BUILD) as new:  # the corpus stays as it is
        return fuzz.run(
            fuzz.command_of(target, native), Path(new), corpus,
            seconds=seconds, log=logs / f"{target}.log", findings=findings,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
