"""Two workers, one slowed three times: is their rate the sum of both speeds?

The slow worker rests after each block, forward and backward, for twice the processor time that the block took. LuWu
divides each batch by the measured speeds. Beside it: each worker alone on whole batches, LuWu with even shares, and DDP
over gloo, which has even shares. Each worker has one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from kit.common import Options, Row, arguments, result, run, table
from kit.luwu_side import LuwuSide
from kit.processes import Side, slowest
from kit.sampling import Bar, Comparison, compare, in_turn

NAME = "uneven"
BAR = "two workers, one slowed three times: at least 95 % of the sum of both speeds"
UNIT = "sequences/s"
LEAST = 0.95
SLOWNESS = 3
OURS, ALONE, EVEN, PEER = "LuWu", "each alone, added", "LuWu, even shares", "DDP, even shares"
BALANCING_ATTEMPTS = 10


def measure_sides(options: Options, settings: dict[str, Any]) -> tuple[Comparison, list[int]]:
    """Return sequences per second of each side, and the sequences of each worker when LuWu divides by speed."""
    batch, slowness = settings["batch"], [1, SLOWNESS]
    counts: list[int] = []
    with ExitStack() as stack:

        def ours(slowness: list[int], *, balanced: bool = False) -> Side:
            own = {**settings, "slowness": slowness, "balanced": balanced}
            own["warm_up"] = max(BALANCING_ATTEMPTS if balanced else 0, settings["warm_up"])
            side = LuwuSide(own, ranks=len(slowness), program="ours/uneven.py", threads=1)
            return stack.enter_context(side)

        both, fast, slow, even = ours(slowness, balanced=True), ours([1]), ours([SLOWNESS]), ours(slowness)
        own = {**settings, "slowness": slowness, "rows": batch // 2}
        python = options.peer_python()
        peer = stack.enter_context(Side(PEER, "peers/ddp_uneven.py", own, ranks=2, threads=1, python=python))
        for side in (both, fast, slow, even, peer):
            side.wait_ready()

        def rate(side: Side) -> float:
            return batch / slowest(side.sample(), "seconds")

        def balanced() -> float:
            samples = both.sample()
            counts[:] = samples[0]["counts"]
            return batch / slowest(samples, "seconds")

        take_round = in_turn({
            OURS: balanced, ALONE: lambda: rate(fast) + rate(slow), EVEN: lambda: rate(even), PEER: lambda: rate(peer),
        })  # fmt: skip
        compared = compare(options, take_round, [Bar(OURS, ALONE, LEAST)], rounds=max(5, options.repeats))
        return compared, list(counts)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    rate = found["sequences_per_second"]
    divided = " and ".join(map(str, found["counts"]))
    yield (
        f"two workers, one {SLOWNESS} times as slow, with {divided} sequences of each step by their speeds",
        f"{rate[OURS] / rate[ALONE]:.1%} of the sum of both speeds",
        "; ".join(f"{side} {rate[side] / rate[ALONE]:.0%}" for side in (EVEN, PEER)),
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    shape = options.size(
        {"layers": 4, "hidden": 256, "heads": 8, "seq": 64}, check={"layers": 1, "hidden": 32, "heads": 4, "seq": 16}
    )
    steps, warm_up = options.effort((2, 2), quick=(1, 1), check=(1, 1))
    settings = {
        "shape": shape, "batch": options.size(32, check=8), "steps": steps, "warm_up": warm_up,
        "folder": str(options.folder),
    }  # fmt: skip

    def measure() -> dict[str, Any]:
        compared, counts = measure_sides(options, settings)
        rates = compared.medians
        table(["side", UNIT, "of the sum"], [[side, rate, rate / rates[ALONE]] for side, rate in rates.items()])
        print(f"sequences of each worker: {counts}")
        details = {"sequences_per_second": rates, "counts": counts, **compared.details()}
        return result(
            NAME, ours=rates[OURS], peer=rates[ALONE], bar=BAR, ok=compared.ok, unit=UNIT, details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
