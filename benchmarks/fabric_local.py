"""Summing a 64 MiB float32 block of N workers and giving every worker the sum: luwu's shared memory against gloo.

On both sides every worker starts from a private gradient tensor; luwu's time contains the copy into its registered
buffer and the reading of one element of every page of the result, so the page faults of mapping it count.
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

NAME = "fabric_local"
BAR = "at N = 8 at least 4x all-reduce and 8x reduce-scatter plus all-gather; broadcast half flat in N (within 1.5x)"
GLOO = ("all_reduce", "reduce_scatter_all_gather")
FEWEST = "broadcast, fewest workers"
BARS = [
    Bar("all_reduce", "luwu", 4.0), Bar("reduce_scatter_all_gather", "luwu", 8.0),
    Bar("broadcast", FEWEST, 1.5, at_least=False),
]  # fmt: skip
QUICK_ROUNDS = 12  # for the fewest workers, which only the last bar names


def measure_group(options: Options, elements: int, ranks: int, fewest: list[float]) -> Comparison:
    """Compare the seconds of every operation at one number of workers.

    `fewest`: seconds of the fewest workers' broadcasts, one to compare with for each round; an empty list is filled.
    """
    repeats = max(15, options.repeats)
    with ExitStack() as stack:
        settings = {"elements": elements, "folder": str(options.folder)}
        python = options.peer_python()
        gloo = stack.enter_context(
            Side("gloo", "peers/gloo_collectives.py", settings, ranks=ranks, python=python, threads=1)
        )
        gloo.wait_ready()
        measures = {kind: lambda kind=kind: slowest(gloo.sample(), kind) for kind in GLOO}
        if options.only_peer:
            return compare(options, in_turn(measures), [], rounds=repeats)
        ours = stack.enter_context(
            LuwuSide(settings, ranks=ranks, program="ours/fabric_local.py", server="ours/aggregator.py", threads=1)
        )
        ours.wait_ready()
        taken: list[float] = []

        def take_round() -> dict[str, float]:
            values = in_turn(measures)()
            samples = ours.sample()
            # The clock is the machine's: the half ends when the last worker has read the sum.
            taken.append(slowest(samples, "received_at") - slowest(samples, "pushed_at"))
            beside = fewest[(len(taken) - 1) % len(fewest)] if fewest else taken[-1]
            return {**values, "luwu": slowest(samples, "seconds"), "broadcast": taken[-1], FEWEST: beside}

        if fewest:
            return compare(options, take_round, BARS, rounds=repeats)
        comparison = Comparison([])
        for _ in range(options.effort(repeats, quick=QUICK_ROUNDS, check=1)):
            comparison.add(take_round())
        fewest += taken
        return comparison


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for ranks, seconds in found["seconds"].items():
        shown = {name: f"{1000 * value:.0f} ms" for name, value in seconds.items()}
        yield (
            f"64 MiB summed for {ranks} workers, and given to all",
            shown["luwu"],
            f"gloo all-reduce {shown['all_reduce']}, in two halves {shown['reduce_scatter_all_gather']}",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    elements = options.size(1 << 24, check=1 << 16)
    groups = options.effort((2, 4, 8), quick=(2, 8), check=(2,))

    def measure() -> dict[str, Any]:
        fewest: list[float] = []
        found = {ranks: measure_group(options, elements, ranks, fewest) for ranks in groups}
        rows = [[ranks, *(1000 * value for value in group.medians.values())] for ranks, group in found.items()]
        last = found[groups[-1]]
        table(["N", *(f"{column} ms" for column in last.medians)], rows)
        ours, all_reduce = last.medians.get("luwu"), last.medians["all_reduce"]
        details = {
            "elements": elements, "seconds": {str(ranks): group.medians for ranks, group in found.items()},
            "compared": last.details(),
        }  # fmt: skip
        ratio, ok = (last.ratio(BARS[0]), last.ok) if ours else (None, False)
        return result(NAME, ours=ours, peer=all_reduce, ratio=ratio, bar=BAR, ok=ok, unit="seconds", details=details)

    return run(NAME, BAR, "seconds", measure, options)


if __name__ == "__main__":
    sys.exit(main())
