"""The server's update with the median of the workers' gradients, and with a trimmed mean, beside that with their mean.

Whole chunks of bfloat16 are updated by AdamW on all processors, checksums included, from memory that no cache holds. It
is the work of the server alone, without disks and network: a run whose disk or link sets the pace is not slower by it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.sampling import Bar, compare, in_turn

from luwu.core import native
from luwu.core.aggregation import MEAN, trims_for

NAME = "trimmed_mean"
BAR = "updates a second with the median of 4 workers' gradients at least a quarter of those with their mean"
UNIT = "parameters a second"
WORKERS = (4, 8)
WAYS = (MEAN, "trimmed", "median")


def name_of(way: str, workers: int) -> str:
    """Return the name of a side."""
    return f"{way} of {workers}"


LEAST = Bar(name_of("median", 4), name_of(MEAN, 4), 0.25)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    rates = found["rates"]
    for workers in WORKERS:
        others = ", ".join(f"{way} {rates[name_of(way, workers)] / 1e6:,.0f} million" for way in WAYS[1:])
        yield (
            f"parameters a second that the server updates from {workers} workers' gradients, in memory",
            others,
            f"mean {rates[name_of(MEAN, workers)] / 1e6:,.0f} million",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    seconds = options.effort(100, check=1) / 200
    threads = len(os.sched_getaffinity(0))

    def side(way: str, workers: int) -> Callable[[], float]:
        trims = trims_for(way, workers)
        return lambda: native.measure_update("adamw", "bfloat16", workers, threads, False, seconds, trims)

    def measure() -> dict[str, Any]:
        sides = {name_of(way, workers): side(way, workers) for workers in WORKERS for way in WAYS}
        compared = compare(options, in_turn(sides), [LEAST], rounds=21)
        rates = compared.medians
        table(["gradients", "million parameters a second"], [[name, rates[name] / 1e6] for name in sides])
        return result(
            NAME, ours=rates[LEAST.over], peer=rates[LEAST.under], ratio=compared.ratio(LEAST), bar=BAR,
            ok=compared.ok, unit=UNIT, details={"rates": rates, "compared": compared.details()},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
