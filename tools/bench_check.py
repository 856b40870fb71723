"""Runs every benchmark at its smallest size to see that all of them run to their end; the figures mean nothing.

usage: python tools/bench_check.py [NAME ...]

Three run at a time, and they and their children are forks of one process that has imported torch. Each prints one line
with its seconds and with what it left out, because a peer or a tool is not installed; the output of one that fails
follows. The last line is one JSON object as a benchmark's, with the seconds of all together as `ours`. The exit status
is 1 when a program failed, and does not depend on the time.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
from bench import build_wire, known_programs, parse_result  # noqa: E402 - programs, not packages
from kit.common import emit, result  # noqa: E402

from harness.warm import ADDRESS, LUWU_MODULES, serve_warm, start_program  # noqa: E402

NAME = "bench_check"
BAR = "every program of benchmarks/ runs to its end at its smallest size, in three minutes together"
LIMIT_SECONDS = 180.0
PROGRAM_LIMIT_SECONDS = 600.0  # generous: it tells a program that hangs from one on a busy machine
ENDING_SECONDS = 20.0
AT_A_TIME = 3  # some wait more than they compute
LONG = (
    "elastic", "device_twin", "plan_measured", "network_faults", "explain_truth", "ten_billion", "network_parity",
    "display_truth", "optimizer_memory",
)  # fmt: skip
"""Begun first: one that is begun last runs alone in the end."""

OUTPUT_TAIL = 4000


class Outcome(NamedTuple):
    """The end of one program."""

    seconds: float
    problem: str | None
    left_out: list[str]
    output: str


def run_check(path: Path) -> Outcome:
    """Runs one program with --check."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = start_program(
            [sys.executable, str(path), "--check"], stdout=output, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        late = False
        try:
            process.wait(PROGRAM_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            late = True
            end(process)
        output.seek(0)
        text = output.read()
    seconds = time.monotonic() - started
    lines = text.strip().splitlines()
    return judge(parse_result(lines[-1] if lines else ""), process.returncode, seconds, late, text)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a program so that it ends its children, which are in sessions of their own; kills it if it does not."""
    process.terminate()
    try:
        process.wait(ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def judge(found: Mapping[str, Any], status: int, seconds: float, late: bool, output: str) -> Outcome:
    """Return the outcome of a program, with what is wrong with its end, if anything."""
    left_out = list(found.get("left_out", ()))
    problem = None
    if late:
        problem = f"did not end within {PROGRAM_LIMIT_SECONDS:.0f} s"
    elif "bar" not in found:
        problem = f"ended with {status}; {found.get('error', 'its last line is no result')}"
    elif found["ok"] is False:
        problem = str(found["details"].get("error", "something is wrong that must hold at any size")).partition("\n")[0]
    elif found["ok"]:
        problem = "claims that its bar is met, at a size that decides nothing"
    elif status != 0:
        problem = f"ended with {status}"
    elif found["ours"] is None and not left_out:
        problem = "measured nothing"
    return Outcome(seconds, problem, left_out, output)


def show(name: str, outcome: Outcome) -> None:
    """Print one line, and the end of the output where something is wrong."""
    words = f"FAILED: {outcome.problem}" if outcome.problem else "runs"
    beside = f"; left out: {'; '.join(outcome.left_out)}" if outcome.left_out else ""
    print(f"{name:20} {outcome.seconds:6.1f} s  {words}{beside}", flush=True)
    if outcome.problem:
        print(outcome.output[-OUTPUT_TAIL:], flush=True)


def main() -> int:
    """Runs the programs and returns the exit status."""
    known = known_programs()
    parser = argparse.ArgumentParser(description="Run every benchmark at its smallest size, for function alone.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="all unless given")
    names = parser.parse_args().names or [*LONG, *(name for name in known if name not in LONG)]
    for name in names:
        if name not in known:
            parser.error(f"there is no benchmark {name}; there are {', '.join(known)}")
    build_wire()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # images often set it; most of the time goes into imports
    started = time.monotonic()

    def check(name: str) -> Outcome:
        outcome = run_check(known[name])
        show(name, outcome)
        return outcome

    with serve_warm(LUWU_MODULES) as address, ThreadPoolExecutor(AT_A_TIME) as pool:
        os.environ[ADDRESS] = address
        outcomes = dict(zip(names, pool.map(check, names), strict=True))
    seconds = time.monotonic() - started
    failed = [name for name, outcome in outcomes.items() if outcome.problem]
    programs = {
        name: {"seconds": round(outcome.seconds, 1), "problem": outcome.problem, "left_out": outcome.left_out}
        for name, outcome in outcomes.items()
    }
    found = result(
        NAME, ours=seconds, peer=LIMIT_SECONDS, bar=BAR, ok=seconds <= LIMIT_SECONDS, right=not failed, unit="seconds",
        details={"programs": programs, "failed": failed},
    )  # fmt: skip
    emit(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
