"""Runs every benchmark beside its peers and writes a dated table with the machine's description.

usage: python tools/bench.py [--quick] [NAME ...]

A benchmark is a file in benchmarks/ that can be run; its last line is one JSON object with at least `name`, `ours`,
`peer`, `ratio`, `bar` and `ok`. The table goes to benchmarks/results/DATE.md, everything that the benchmarks reported
to DATE.json beside it. With names only those run, and take the place of their rows in the newest table. The exit
status is 1 when a benchmark failed or missed its bar; with --quick a bar may be met, missed, or not decided.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
PROGRAM_LIMIT_SECONDS = 3600

sys.path[:0] = [str(BENCHMARKS), str(ROOT)]
from kit.common import machine  # noqa: E402 - the benchmarks are programs, not a package

from harness.network.wire import PROGRAM as WIRE  # noqa: E402


def install_peers() -> str:
    """Makes the peers' environment where it is missing and returns the path of its Python."""
    done = subprocess.run([ROOT / "tools" / "peers.sh"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit("bench: the peers could not be installed; tools/peers.sh has said why")
    return done.stdout.strip()


def build_wire() -> None:
    """Builds the cable that harms packets, which some benchmarks of the network need, where it is missing."""
    if not WIRE.exists():
        tests_of_one_file = [ROOT / "tools" / "native_tests.sh", "native", "", "packets"]
        subprocess.run(tests_of_one_file, stdout=subprocess.DEVNULL, check=True)


def known_programs() -> dict[str, Path]:
    """The benchmarks by name, in alphabetical order: the files of the folder; what they share is in its folder kit."""
    return {path.stem: path for path in sorted(BENCHMARKS.glob("*.py"))}


def run_program(path: Path, options: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Runs one benchmark, passing its output on, and returns its result; `failed` says that nothing was measured."""
    print(f"\n== {path.stem}", flush=True)
    started = time.monotonic()
    last_line = ""
    command = [sys.executable, str(path), *options]
    with subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        limit = threading.Timer(PROGRAM_LIMIT_SECONDS, process.kill)
        limit.start()
        for line in process.stdout:
            print(line, end="", flush=True)
            last_line = line.strip() or last_line
        limit.cancel()
    result = {"name": path.stem, "ok": False, **parse_result(last_line)}
    failed = result.get("ours") is None or (process.returncode != 0 and result["ok"] is not False)
    seconds = round(time.monotonic() - started, 1)
    return {**result, "failed": failed, "exit_status": process.returncode, "seconds": seconds}


def parse_result(line: str) -> dict[str, Any]:
    """The JSON object on a benchmark's last line, or one that tells what was there instead."""
    try:
        result = json.loads(line)
    except ValueError:
        result = None
    return result if isinstance(result, dict) else {"error": f"the last line is no JSON object: {line[:200]}"}


def disk() -> str:
    """Device and file system that the benchmarks write to (build/bench)."""
    found = subprocess.run(
        ["findmnt", "--noheadings", "--output", "SOURCE,FSTYPE,SIZE", "--target", str(ROOT)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return " ".join(found.stdout.split()) or "unknown"


def describe_machine() -> dict[str, Any]:
    """Return the description of `common.machine`, the disk and torch."""
    return {**machine(), "disk": disk(), "torch": importlib.metadata.version("torch")}


def cell(value: object) -> str:
    """A value as a table cell: four significant digits, a dash for nothing."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|").replace("\n", " ")


def verdict(result: Mapping[str, Any]) -> str:
    """The text of the column `ok`."""
    if result["failed"]:
        return "**failed**"
    return {True: "yes", False: "**no**", None: "not decided"}[result["ok"]]


def processor_lines(results: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> list[str]:
    """Return the processors that benchmarks ran on; with their names where rows were measured on different ones."""
    names: dict[str, list[str]] = {}
    for result in results:
        of = result.get("machine", about)
        text = f"- processor: {of['processor']}, {of['cores']} cores ({', '.join(of['vector_sets'])})"
        names.setdefault(text, []).append(result["name"])
    if len(names) == 1:
        return list(names)
    return [f"{text}: {', '.join(each)}" for text, each in names.items()]


def markdown(results: Sequence[Mapping[str, Any]], about: Mapping[str, Any], command: str) -> str:
    """The report: what was run, where, and one row a benchmark."""
    lines = [
        f"# Benchmarks of {about['date'][:10]}",
        "",
        f"`{command}` on this machine:",
        "",
        *processor_lines(results, about),
        f"- memory: {about['memory_bytes'] / 2**30:.1f} GiB",
        f"- disk: {about['disk']}",
        f"- kernel: {about['kernel']}",
        f"- Python {about['python']}, torch {about['torch']}",
        "",
        "| benchmark | ours | peer | unit | ratio | bar | ok | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        shown = [result.get(key) for key in ("name", "ours", "peer", "unit", "ratio", "bar")]
        cells = [*map(cell, shown), verdict(result), cell(result["seconds"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def earlier_results(folder: Path, suffix: str) -> list[dict[str, Any]]:
    """The newest table's rows, nothing if there is none; each has the day it was measured on."""
    tables = sorted(folder.glob(f"????-??-??{suffix}.json"))
    return json.loads(tables[-1].read_text())["results"] if tables else []


def main() -> int:
    """Runs the benchmarks one after the other, writes the report, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Run every benchmark and write a dated table.")
    parser.add_argument("--quick", action="store_true", help="about 45 seconds each; undecided where that is too short")
    known = known_programs()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; all unless given")
    wanted = parser.parse_args()
    for stem in wanted.names:
        if stem not in known:
            parser.error(f"there is no benchmark {stem}; there are {', '.join(known)}")
    options = ["--quick"] if wanted.quick else []

    build_wire()
    environment = {**os.environ, "LUWU_PEERS_PYTHON": install_peers()}
    about = describe_machine()
    folder = BENCHMARKS / "results"
    folder.mkdir(exist_ok=True)
    suffix = "-quick" if options else ""
    name = datetime.date.today().isoformat() + suffix
    found = {result["name"]: result for result in earlier_results(folder, suffix)} if wanted.names else {}
    found |= {stem: run_program(known[stem], options, environment) for stem in wanted.names or known}
    results = [found[stem] for stem in sorted(found)]
    report = markdown(results, about, " ".join(["make bench", *options]))
    (folder / f"{name}.md").write_text(report)
    (folder / f"{name}.json").write_text(json.dumps({"machine": about, "results": results}, indent=2) + "\n")
    print(f"\n{report}\nwritten to {folder / name}.md and .json")
    return 1 if any(result["ok"] is False or result["failed"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
