"""Summing a 64 MiB float32 block of N workers and giving every worker the sum: luwu's shared memory against gloo.

On both sides every worker starts from a private gradient tensor; luwu's time contains the copy into its registered
buffer and the reading of one element of every page of the result, so the page faults of mapping it count.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from typing import Any

from common import arguments, median_alternating, require_peers, result, run, table
from luwu_side import LuwuSide
from processes import Side, slowest

NAME = "fabric_local"
BAR = "at N = 8 at least 4x all-reduce and 8x reduce-scatter plus all-gather; broadcast half flat in N (within 1.5x)"
GLOO = ("all_reduce", "reduce_scatter_all_gather")
FLAT = 1.5


def group_times(elements: int, ranks: int, folder: str, repeats: int, only_peer: bool) -> dict[str, float]:
    """Seconds of every operation at one number of workers."""
    with ExitStack() as stack:
        settings = {"elements": elements, "folder": folder}
        gloo = stack.enter_context(
            Side("gloo", "peers/gloo_collectives.py", settings, ranks=ranks, python=require_peers(), threads=1)
        )
        gloo.wait_ready()
        measures = {kind: lambda kind=kind: slowest(gloo.sample(), kind) for kind in GLOO}
        if not only_peer:
            ours = stack.enter_context(
                LuwuSide(settings, ranks=ranks, program="ours/fabric_local.py", server="ours/aggregator.py", threads=1)
            )
            ours.wait_ready()
            broadcasts: list[float] = []

            def aggregate() -> float:
                samples = ours.sample()
                # The clock is the machine's: the half ends when the last worker has read the sum.
                broadcasts.append(slowest(samples, "received_at") - slowest(samples, "pushed_at"))
                return slowest(samples, "seconds")

            measures["luwu"] = aggregate
        times = median_alternating(measures, repeats)
        if not only_peer:
            times["broadcast"] = statistics.median(broadcasts)
        return times


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    elements, groups = ((1 << 22), (2, 8)) if options.quick else ((1 << 24), (2, 4, 8))
    repeats = max(5 if options.quick else 15, options.repeats)

    def measure() -> dict[str, Any]:
        times = {
            ranks: group_times(elements, ranks, str(options.folder), repeats, options.only_peer) for ranks in groups
        }
        rows = [[ranks, *(1000 * value for value in found.values())] for ranks, found in times.items()]
        table(["N", *(f"{column} ms" for column in times[groups[0]])], rows)
        most = times[groups[-1]]
        ours, all_reduce, both = most.get("luwu"), most[GLOO[0]], most[GLOO[1]]
        flat = ours is not None and most["broadcast"] <= FLAT * times[groups[0]]["broadcast"]
        ok = ours is not None and all_reduce >= 4 * ours and both >= 8 * ours and flat
        ratio = all_reduce / ours if ours else None
        details = {"elements": elements, "seconds": {str(ranks): found for ranks, found in times.items()}}
        return result(NAME, ours=ours, peer=all_reduce, ratio=ratio, bar=BAR, ok=ok, unit="seconds", details=details)

    return run(NAME, BAR, "seconds", measure)


if __name__ == "__main__":
    sys.exit(main())
