"""Compares training and a worker's memory with another checkout of LuWu, in turn, in one run.

usage: python tools/against.py CHECKOUT [--rounds N]

CHECKOUT is a clone at an older commit, set up with `make setup`. Both sides run this checkout's benchmark programs,
each with the Python of its own .venv: two workers and a server over shared memory, 12 blocks of hidden 512, float32 and
bfloat16. The last line is one JSON object: for each type the median of the rounds' ratios of tokens per second, this
checkout over the other, and of a worker's peak memory, the other over this one. Above 0.98 this one is not worse.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from luwu_side import LuwuSide  # noqa: E402 - programs, not packages
from processes import slowest  # noqa: E402

SHAPE = {"layers": 12, "hidden": 512, "heads": 8, "seq": 256}
RANKS, ROWS, STEPS, WARM_UP = 2, 2, 3, 2


def start(stack: ExitStack, folder: str, checkout: Path, dtype: str) -> LuwuSide:
    """Start a server and its workers with the LuWu of a checkout."""
    settings = {
        "folder": folder, "shape": SHAPE, "rows": ROWS, "steps": STEPS, "warm_up": WARM_UP, "dtype": dtype,
        "checkpoint": True,
    }  # fmt: skip
    return stack.enter_context(LuwuSide(settings, ranks=RANKS, python=checkout / ".venv" / "bin" / "python"))


def compare(other: Path, dtype: str, rounds: int) -> dict[str, Any]:
    """Measure both checkouts in turn with values of one type; return the ratios of speed and of memory."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="against-"))
        sides = {name: start(stack, folder, path, dtype) for name, path in (("this", ROOT), ("other", other))}
        for side in sides.values():
            side.wait_ready()
        ratios = []
        for number in range(rounds):
            order = list(sides) if number % 2 else list(reversed(sides))
            seconds = {name: slowest(sides[name].sample(), "seconds") for name in order}
            ratios.append(seconds["other"] / seconds["this"])
        for side in sides.values():
            side.stop()
        peaks = {name: side.worker_bytes / 1e6 for name, side in sides.items()}
    return {
        "speed": statistics.median(ratios), "rounds": sorted(ratios), "memory": peaks["other"] / peaks["this"],
        "worker_mb": peaks,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare training with another checkout of LuWu.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    found = {dtype: compare(options.checkout.resolve(), dtype, options.rounds) for dtype in ("float32", "bfloat16")}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
