"""Compares speed and a worker's memory with another checkout of LuWu, in turn, in one run.

usage: python tools/against.py CHECKOUT [--starts N] [--rounds N] [--parts NAME ...]

CHECKOUT is a clone at an older commit, set up with `make setup`. Each side runs the benchmark programs of its own
checkout with the Python of its own .venv. The parts are the sizes of the benchmarks of their names, or smaller. The
last line is one JSON object: for each part the median of the rounds' ratios of speed, this checkout over the other,
and of a worker's peak memory, the other over this one. Above 0.98 this one is not worse.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from kit.luwu_side import LuwuSide, in_checkout  # noqa: E402 - programs, not packages
from kit.processes import Side, slowest  # noqa: E402

Start = Callable[[str, Path], Side]
"""Starts a side: takes a folder for its files and a checkout."""

Seconds = Callable[[list[dict[str, Any]]], float]
"""Returns the seconds that the samples of a side's ranks stand for."""


def train(dtype: str) -> Start:
    """Return the start of two workers and a server over shared memory: 12 blocks of hidden 512."""

    def start(folder: str, checkout: Path) -> Side:
        settings = {
            "folder": folder, "shape": {"layers": 12, "hidden": 512, "heads": 8, "seq": 256}, "rows": 2, "steps": 3,
            "warm_up": 2, "dtype": dtype, "checkpoint": True,
        }  # fmt: skip
        return LuwuSide(settings, ranks=2, checkout=checkout)

    return start


def out_of_core(folder: str, checkout: Path) -> Side:
    """Start a worker whose states, 1.4 GB, are more than four times its server's budget; the disk sets the pace."""
    settings = {
        "folder": folder, "shape": {"layers": 8, "hidden": 1024, "heads": 16, "seq": 32}, "rows": 1, "steps": 1,
        "warm_up": 2, "one_batch": True, "dtype": "bfloat16", "checkpoint": True, "meta": True, "memory": 256 << 20,
    }  # fmt: skip
    return LuwuSide(settings, checkout=checkout)


def optimizer_disk(folder: str, checkout: Path) -> Side:
    """Start the optimizer alone, out of core: 24 blocks of 3.1M parameters."""
    settings = {
        "folder": folder, "blocks": 24, "block_elements": 12 * 512 * 512, "memory_bytes": 128 << 20, "steps": 1,
    }  # fmt: skip
    return Side("luwu", "ours/optimizer_disk.py", settings, **in_checkout(checkout))


def fabric_local(folder: str, checkout: Path) -> Side:
    """Start four workers that each push 64 MiB and read the sum, through shared memory."""
    settings = {"elements": 1 << 24, "folder": folder}
    return LuwuSide(
        settings, ranks=4, program="ours/fabric_local.py", server="ours/aggregator.py", threads=1, checkout=checkout
    )


def of_step(samples: list[dict[str, Any]]) -> float:
    """Return the seconds of the slowest rank."""
    return slowest(samples, "seconds")


def of_rate(samples: list[dict[str, Any]]) -> float:
    """Return the seconds for a parameter."""
    return 1 / float(samples[0]["parameters_per_second"])


PARTS: dict[str, tuple[Start, Seconds]] = {
    "train float32": (train("float32"), of_step),
    "train bfloat16": (train("bfloat16"), of_step),
    "out_of_core": (out_of_core, of_step),
    "optimizer_disk": (optimizer_disk, of_rate),
    "fabric_local": (fabric_local, of_step),
}


def compare(other: Path, part: str, starts: int, rounds: int) -> dict[str, Any]:
    """Measure a part in both checkouts in turn, several times from its start; return the ratios of speed and memory."""
    ratios: list[float] = []
    peaks = {"this": 0.0, "other": 0.0}
    for number in range(starts):
        found, used = measure(other, part, rounds, reverse=number % 2 == 1)
        ratios += found
        peaks = {name: max(peak, used[name]) for name, peak in peaks.items()}
    found = {"speed": statistics.median(ratios), "memory": peaks["other"] / peaks["this"]}
    print(f"{part}: {found}", flush=True)
    return {**found, "rounds": sorted(ratios), "worker_mb": peaks}


def measure(other: Path, part: str, rounds: int, *, reverse: bool) -> tuple[list[float], dict[str, float]]:
    """Start both sides, and measure them in turn.

    Args:
        reverse: start the other side first. Its files lie elsewhere on the disk then, which changes the speed of a
            store by some percent.

    Returns:
        The ratio of speed in each round, and the peak memory of a worker of each side in MB.
    """
    start, seconds_of = PARTS[part]
    checkouts = {"this": ROOT, "other": other}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="against-"))
        names = list(reversed(checkouts)) if reverse else list(checkouts)
        sides = {name: stack.enter_context(start(folder, checkouts[name])) for name in names}
        for side in sides.values():
            side.wait_ready()
            side.sample()  # the first is not like the others
        ratios = []
        for number in range(rounds):
            order = list(sides) if number % 2 else list(reversed(sides))
            seconds = {name: seconds_of(sides[name].sample()) for name in order}
            ratios.append(seconds["other"] / seconds["this"])
        for side in sides.values():
            side.stop()
        return ratios, {name: max(side.memory.each_bytes[: side.ranks]) / 1e6 for name, side in sides.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Compare LuWu with another checkout of it.")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--starts", type=int, default=4, help="times that both sides start anew (4)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after each start (5)")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    other = options.checkout.resolve()
    print(json.dumps({part: compare(other, part, options.starts, options.rounds) for part in options.parts}))


if __name__ == "__main__":
    main()
