"""AdamW in memory, mixed precision, on 1 and 2 threads: luwu's kernel against torch and DeepSpeedCPUAdam.

All sides take turns within a round, in an order of its own; a ratio is the median of the rounds' ratios, so a machine
that drifts does not favour a side. torch's fused fp32 AdamW (28 bytes per parameter, as many as luwu's update) shows
what memory gives.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from common import BenchmarkError, arguments, require_peers, result, run, table
from processes import Side
from update_sides import COMPILED, EAGER, EAGER_KEPT, EAGER_SUMMING, FUSED, OURS, OURS_SUMMING, WORKERS, Sides, Update

NAME = "optimizer_memory"
DEEPSPEED = "DeepSpeedCPUAdam"
THREADS = (1, 2)
UPDATE_BYTES = 28
PAUSE_SECONDS = 0.03  # OpenMP threads spin for some milliseconds after their work: not in the next side's time


class Rival(NamedTuple):
    """A peer, which of luwu's figures stands against it, and the least ratio of their speeds (None: shown only)."""

    ours: str
    least: float | None
    bytes_per_parameter: int


RIVALS = {
    EAGER: Rival(OURS, 1.6, UPDATE_BYTES),
    EAGER_KEPT: Rival(OURS, None, UPDATE_BYTES),
    DEEPSPEED: Rival(OURS, 1.6, UPDATE_BYTES),
    COMPILED: Rival(OURS, 1.0, UPDATE_BYTES),
    FUSED: Rival(OURS, 0.9, UPDATE_BYTES),
    EAGER_SUMMING: Rival(OURS_SUMMING, 2.0, UPDATE_BYTES + 2 * (WORKERS - 1)),
}
BAR = "at least " + ", ".join(f"{rival.least} x {name}" for name, rival in RIVALS.items() if rival.least)

Seconds = dict[str, list[float]]


def timed(update: Update) -> Callable[[], float]:
    """The update as a function that returns the seconds it took."""

    def measure() -> float:
        started = time.perf_counter()
        update()
        return time.perf_counter() - started

    return measure


def take_rounds(measures: dict[str, Callable[[], float]], rounds: int) -> Seconds:
    """Seconds of every side in every round, after two rounds that do not count (they compile and touch memory).

    Each round has an order of its own, so that no side always follows the same other one.
    """
    order = random.Random(1)
    seconds: Seconds = {name: [] for name in measures}
    for turn in range(-2, rounds):
        for name in order.sample(list(measures), len(measures)):
            time.sleep(PAUSE_SECONDS)
            found = measures[name]()
            if turn >= 0:
                seconds[name].append(found)
    return seconds


def compare(seconds: Seconds) -> dict[str, float]:
    """How many times as fast as each peer luwu is, by medians."""
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    return {
        name: medians[name] / medians[rival.ours]
        for name, rival in RIVALS.items()
        if name in medians and rival.ours in medians
    }


def show(threads: int, elements: int, seconds: Seconds, ratios: dict[str, float]) -> None:
    """Prints the table of one number of threads."""
    print(f"\n{threads} thread{'s' if threads > 1 else ''}, {elements / 1e6:.0f}M parameters")
    rows = []
    for name, found in seconds.items():
        rival = RIVALS.get(name)
        bytes_moved = rival.bytes_per_parameter if rival else UPDATE_BYTES + 2 * (WORKERS - 1) * (name == OURS_SUMMING)
        median = statistics.median(found)
        least = rival.least if rival and rival.least else "-"
        rows.append([name, median * 1e3, bytes_moved * elements / median / 1e9, ratios.get(name, "-"), least])
    table(["side", "ms", "GB/s", "luwu is faster by", "bar"], rows)


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    elements = (16 if options.quick else 64) << 20
    rounds = max(9 if options.quick else 21, options.repeats)

    def measure() -> dict[str, Any]:
        notes: dict[str, str] = {}
        milliseconds, ratios = {}, {}
        with ExitStack() as stack:
            deepspeed = start_deepspeed(stack, elements, notes)
            sides = Sides(elements)
            for threads in THREADS:
                updates = {} if options.only_peer else sides.luwu(threads)
                updates |= sides.torch_eager(threads) | sides.torch_compile(threads)
                measures = {name: timed(update) for name, update in updates.items()}
                if threads in deepspeed:
                    side = deepspeed[threads]
                    side.wait_ready()
                    measures[DEEPSPEED] = lambda side=side: float(side.sample()[0]["seconds"])
                seconds = take_rounds(measures, rounds)
                ratios[threads] = compare(seconds)
                milliseconds[threads] = {name: 1e3 * statistics.median(found) for name, found in seconds.items()}
                show(threads, elements, seconds, ratios[threads])
        return conclude(elements, milliseconds, ratios, notes)

    return run(NAME, BAR, "parameters/s", measure)


def start_deepspeed(stack: ExitStack, elements: int, notes: dict[str, str]) -> dict[int, Side]:
    """DeepSpeedCPUAdam's processes, one for each number of threads; none, said aloud, where it is not installed."""
    try:
        python = require_peers()
    except BenchmarkError as error:
        notes[DEEPSPEED] = str(error)
        print(f"{DEEPSPEED} left out: {error}")
        return {}
    return {
        threads: stack.enter_context(
            Side(DEEPSPEED, "peers/deepspeed_cpu_adam.py", {"elements": elements, "threads": threads},
                 threads=threads, python=python)
        )
        for threads in THREADS
    }  # fmt: skip


def conclude(
    elements: int, milliseconds: dict[int, dict[str, float]], ratios: dict[int, dict[str, float]], notes: dict[str, str]
) -> dict[str, Any]:
    """The result: speed against torch eager on the most threads; ok when every bar is met with any of them."""
    missed = [
        f"{name} with {threads} threads: {found[name]:.2f}" if name in found else f"{name}: not measured"
        for threads, found in ratios.items()
        for name, rival in RIVALS.items()
        if rival.least and found.get(name, 0.0) < rival.least
    ]
    last = milliseconds[THREADS[-1]]
    speed = {name: 1e3 * elements / found for name, found in last.items()}
    details = {"elements": elements, "milliseconds": milliseconds, "ratios": ratios, "missed": missed, **notes}
    return result(
        NAME, ours=speed.get(OURS), peer=speed[EAGER], ratio=ratios[THREADS[-1]].get(EAGER), bar=BAR, ok=not missed,
        unit="parameters/s", details=details,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
