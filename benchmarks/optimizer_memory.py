"""AdamW in memory, mixed precision, on 1 and 2 threads: luwu's kernel against torch and DeepSpeedCPUAdam.

All sides take turns within a round, in an order of its own; a ratio is the median of the rounds' ratios, so a machine
that drifts does not favour a side. torch's fused fp32 AdamW (28 bytes per parameter, as many as luwu's update) shows
what memory gives.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from kit.common import NotInstalledError, Options, Row, all_of, arguments, result, run, table
from kit.processes import Side
from kit.sampling import Bar, Comparison, compare
from kit.update_sides import (
    COMPILED,
    EAGER,
    EAGER_KEPT,
    EAGER_SUMMING,
    FUSED,
    OURS,
    OURS_SUMMING,
    WORKERS,
    Sides,
    take_each,
    timed,
)

NAME = "optimizer_memory"
DEEPSPEED = "DeepSpeedCPUAdam"
THREADS = (1, 2)
UPDATE_BYTES = 28


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
BARS = [Bar(name, rival.ours, rival.least) for name, rival in RIVALS.items() if rival.least]
BAR = "at least " + ", ".join(f"{rival.least} x {name}" for name, rival in RIVALS.items() if rival.least)


def take_rounds(options: Options, measures: dict[str, Callable[[], float]], share: float) -> Comparison:
    """Seconds of every side in every round, after two rounds that do not count (they compile and touch memory).

    Each round has an order of its own, so that no side always follows the same other one.
    """
    order = random.Random(1)

    def take_round() -> dict[str, float]:
        return take_each(measures, order.sample(list(measures), len(measures)))

    for _ in range(options.effort(2, check=1)):
        take_round()
    bars = [bar for bar in BARS if bar.over in measures and bar.under in measures]
    rounds = max(21, options.repeats)
    return compare(options, take_round, bars, rounds=rounds, family=len(BARS) * len(THREADS), share=share)


def ratios_of(found: Comparison) -> dict[str, float]:
    """The speed of luwu as a multiple of each peer's."""
    return {
        name: found.ratio(Bar(name, rival.ours, 0.0))
        for name, rival in RIVALS.items()
        if name in found.medians and rival.ours in found.medians
    }


def show(threads: int, elements: int, seconds: dict[str, float], ratios: dict[str, float]) -> None:
    """Prints the table of one number of threads."""
    print(f"\n{threads} thread{'s' if threads > 1 else ''}, {elements / 1e6:.0f}M parameters")
    rows = []
    for name, median in seconds.items():
        rival = RIVALS.get(name)
        bytes_moved = rival.bytes_per_parameter if rival else UPDATE_BYTES + 2 * (WORKERS - 1) * (name == OURS_SUMMING)
        least = rival.least if rival and rival.least else "-"
        rows.append([name, median * 1e3, bytes_moved * elements / median / 1e9, ratios.get(name, "-"), least])
    table(["side", "ms", "GB/s", "luwu is faster by", "bar"], rows)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for threads, sides in found["milliseconds"].items():
        rate = {name: found["elements"] / milliseconds / 1e6 for name, milliseconds in sides.items()}
        peers = ("torch eager", "torch.compile", "DeepSpeedCPUAdam")
        yield (
            f"AdamW in memory, bf16 with fp32 states, {threads} thread{'s' * (threads != '1')}",
            f"{rate['luwu']:.2f} Gparam/s",
            ", ".join(f"{peer} {rate[peer]:.2f}" for peer in peers),
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    elements = options.size(64 << 20, check=1 << 18)
    numbers = options.size(THREADS, check=THREADS[-1:])

    def measure() -> dict[str, Any]:
        found: dict[int, Comparison] = {}
        with ExitStack() as stack:
            deepspeed = start_deepspeed(stack, elements, options)
            sides = Sides(elements, options.size("inductor", check="eager"))
            for number, threads in enumerate(numbers):
                updates = {} if options.only_peer else sides.luwu(threads)
                updates |= sides.torch_eager(threads) | sides.torch_compile(threads)
                measures = {name: timed(update) for name, update in updates.items()}
                if threads in deepspeed:
                    side = deepspeed[threads]
                    side.wait_ready()
                    measures[DEEPSPEED] = lambda side=side: float(side.sample()[0]["seconds"])
                found[threads] = take_rounds(options, measures, 1 / (len(numbers) - number))
                show(threads, elements, found[threads].medians, ratios_of(found[threads]))
        return conclude(elements, found)

    return run(NAME, BAR, "parameters/s", measure, options)


def start_deepspeed(stack: ExitStack, elements: int, options: Options) -> dict[int, Side]:
    """DeepSpeedCPUAdam's processes, one for each number of threads; none, said aloud, where it is not installed."""
    try:
        python = options.peer_python("deepspeed")
    except NotInstalledError as error:
        options.left_out.append(f"{DEEPSPEED}: {error}")
        print(f"{DEEPSPEED} left out: {error}")
        return {}
    return {
        threads: stack.enter_context(
            Side(DEEPSPEED, "peers/deepspeed_cpu_adam.py", {"elements": elements, "threads": threads},
                 threads=threads, python=python)
        )
        for threads in THREADS
    }  # fmt: skip


def conclude(elements: int, compared: dict[int, Comparison]) -> dict[str, Any]:
    """The result: speed against torch eager on the most threads; ok when every bar is met with any of them."""
    ratios = {threads: ratios_of(found) for threads, found in compared.items()}
    missed = [
        f"{bar.over} with {threads} threads: " + (f"{found[bar.over]:.2f}" if bar.over in found else "not measured")
        for threads, found in ratios.items()
        for bar in BARS
        if found.get(bar.over, 0.0) < bar.limit
    ]
    last = max(compared)
    speed = {name: elements / median for name, median in compared[last].medians.items()}
    measured = all(bar.over in found for found in ratios.values() for bar in BARS)
    details = {
        "elements": elements,
        "milliseconds": {n: {name: 1e3 * t for name, t in found.medians.items()} for n, found in compared.items()},
        "ratios": ratios, "missed": missed, "compared": {n: found.details() for n, found in compared.items()},
    }  # fmt: skip
    ok = all_of(*(found.ok for found in compared.values()))
    return result(
        NAME, ours=speed.get(OURS), peer=speed[EAGER], ratio=ratios[last].get(EAGER), bar=BAR,
        ok=ok if measured else False, unit="parameters/s", details=details,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
