"""Fuzzes every parser of bytes that come from outside, one target after the other, and grows their corpora.

usage: python tools/fuzz.py [TARGET ...]

Builds the native targets with clang's libFuzzer, AddressSanitizer and UBSan in build/fuzz; Python's run under atheris.
FUZZ_SECONDS (60) is how long each runs. What reaches new code joins tests/fuzz/corpus, which the tests replay. The
first finding ends its target; its input is kept in build/fuzz/findings, and the exit status is 1. tests/fuzz/time.json
adds up the processor time that each parser had without a finding since its files changed: a machine that does other
work beside fuzzes less in a second.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]

from kit.fuzz_ledger import note  # noqa: E402 - the ledger stands beside the list of parsers

FUZZ = ROOT / "tests" / "fuzz"
BUILD = ROOT / "build" / "fuzz"
DEFAULT_SECONDS = 60
LONGEST_INPUT_BYTES = 4096
SLOWEST_SECONDS = 20
MOST_MEMORY_MIB = 4096
COMPILERS = ("clang++", "clang++-19", "clang++-18", "clang++-17", "clang++-16", "clang++-15", "clang++-14")
SUPPORT = ("__init__", "__main__", "cover", "replay", "support")


class Outcome(NamedTuple):
    """A target after a while: processor seconds, executions, edges of its program, and whether there was a finding."""

    seconds: float
    executions: int
    edges: int
    found: bool


def native_targets() -> list[str]:
    """Names of the targets in C++."""
    return sorted(file.stem for file in (FUZZ / "native").glob("*.cc"))


def python_targets() -> list[str]:
    """Names of the targets in Python."""
    return sorted(file.stem for file in (FUZZ / "python").glob("*.py") if file.stem not in SUPPORT)


def build_native(kind: str, *settings: str) -> Path:
    """Build the native targets in a folder of their own, and return where they are; raises CalledProcessError."""
    folder = BUILD / kind
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise SystemExit("fuzz: needs clang++ and its run-time libraries: apt-get install clang libclang-rt-14-dev")
    tools = {"PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}", "CXX": compiler}
    if shutil.which("ccache"):
        tools |= {"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_NOHASHDIR": "true"}
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"} | tools
    configure = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "--log-level=WARNING"]
    flags = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1 -DNDEBUG"]
    subprocess.run([*configure, *flags, f"-DLUWU_FUZZ={kind}", *settings], env=environment, check=True, stdout=2)
    subprocess.run(["cmake", "--build", folder, "--", "--quiet"], env=environment, check=True, stdout=2)
    return folder / "tests" / "fuzz" / "native"


def command_of(target: str, native: Path | None) -> list[str]:
    """Return the command that runs a target; libFuzzer's options and folders follow."""
    if target in native_targets():
        return [str(native / f"luwu_fuzz_{target}")] if native else []
    return [sys.executable, "-m", "tests.fuzz.python", target]


def processor_seconds() -> float:
    """Return the processor time of the programs that this one has run to their ends."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command: Sequence[str], *folders: Path, seconds: float, log: Path, findings: Path) -> Outcome:
    """Run a target for ``seconds``; the first folder receives inputs that reach something new."""
    options = [
        f"-max_total_time={round(seconds)}", f"-max_len={LONGEST_INPUT_BYTES}", f"-timeout={SLOWEST_SECONDS}",
        f"-rss_limit_mb={MOST_MEMORY_MIB}", f"-artifact_prefix={findings}{os.sep}", "-use_value_profile=1",
        "-len_control=20", "-print_final_stats=1",
    ]  # fmt: skip
    in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with log.open("w") as file, tempfile.TemporaryDirectory(prefix="luwu-fuzz-", dir=in_memory) as scratch:
        environment = {**os.environ, "TMPDIR": scratch}  # libFuzzer ends without tidying up
        before = processor_seconds()
        ended = subprocess.run(
            [*command, *options, *folders], cwd=ROOT, env=environment, stdout=file, stderr=file, check=False
        )
        used = min(processor_seconds() - before, seconds)  # a target's threads do not make its hour shorter
    text = log.read_text(errors="replace")
    executions = re.findall(r"^#(\d+)\s", text, re.MULTILINE)
    edges = re.findall(r" cov: (\d+) ", text)
    return Outcome(
        used, int(executions[-1]) if executions else 0, max(map(int, edges), default=0), ended.returncode != 0
    )


def merge(target: str, command: Sequence[str], new: Path) -> None:
    """Add to the corpus what reaches code that it does not reach; what is in it stays, as it may be an old finding."""
    corpus = FUZZ / "corpus" / target
    if target in native_targets():
        options = ["-merge=1", "-use_counters=0", f"-timeout={SLOWEST_SECONDS}"]
        subprocess.run([*command, *options, corpus, new], cwd=ROOT, stderr=subprocess.DEVNULL, check=True)
    else:  # libFuzzer's own merge starts its program again, which cannot be an interpreter
        cover = [sys.executable, "-m", "tests.fuzz.python.cover", target, corpus, new]
        subprocess.run(cover, cwd=ROOT, check=True)


def main() -> int:
    """Fuzz the targets that are named, or all; print a line for each."""
    seconds = float(os.environ.get("FUZZ_SECONDS", DEFAULT_SECONDS))
    targets = sys.argv[1:] or [*native_targets(), *python_targets()]
    native = None
    if set(targets) & set(native_targets()):
        native = build_native("guided", "-DLUWU_SANITIZE=address,undefined")
    findings, logs = BUILD / "findings", BUILD / "logs"
    failed = []
    for target in targets:
        for folder in (findings / target, logs, BUILD / "new" / target, FUZZ / "corpus" / target):
            folder.mkdir(parents=True, exist_ok=True)
        command, new = command_of(target, native), BUILD / "new" / target
        outcome = run(
            command, new, FUZZ / "corpus" / target,
            seconds=seconds, log=logs / f"{target}.log", findings=findings / target,
        )  # fmt: skip
        merge(target, command, new)
        kept = len(list((FUZZ / "corpus" / target).iterdir()))
        total = note(target, round(outcome.seconds), outcome.executions, found=outcome.found)
        print(
            f"{target}: {outcome.executions} executions, {outcome.edges} edges, {kept} inputs kept;"
            f" {total.seconds} s of a processor without a finding since its parser changed",
            flush=True,
        )
        if outcome.found:
            failed.append(target)
            print(f"  FINDING: see {logs / target}.log and {findings / target}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
