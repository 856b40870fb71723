"""The step time of a run that somebody watches, beside the same run alone: one page is open, figures are scraped.

One run of two workers over shared memory takes steps; in turn a page of `luwu watch` follows it and its figures for
Prometheus are asked for every second, or nobody looks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Row, all_of, arguments, result, run, table
from kit.luwu_side import LuwuSide, small_run
from kit.sampling import Bar, compare, in_turn
from kit.watching import Watch, being_watched

NAME = "watch_cost"
BAR = "step time with page open, metrics scraped each second: at most 0.5 % more; memory of `luwu watch` under 64 MiB"
MOST = Bar("watched", "alone", 1.005, at_least=False)
MOST_BYTES = 64 << 20
UNIT = "seconds a step"
WORKERS = 2


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    seconds = found["seconds"]
    yield (
        "step time of two workers while a page of `luwu watch` is open and figures are scraped every second",
        f"{seconds['watched'] * 1e3:.1f} ms",
        f"alone {seconds['alone'] * 1e3:.1f} ms",
    )
    yield "memory of `luwu watch`", f"{found['memory_bytes'] / (1 << 20):.0f} MiB", "64 MiB"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    # A disk's own variation would hide the cost.
    settings = {**small_run(options, 80), "metrics": ":0", "durable": "1000 steps", "wait": "answer"}

    def measure() -> dict[str, Any]:
        with LuwuSide(settings, ranks=WORKERS, threads=1) as side:
            side.wait_ready()
            with Watch([side.run_folder]) as watch:
                side.sample()

                def watched() -> float:
                    with being_watched(watch, side.server_sample["metrics"]):
                        return side.step_seconds()

                sides = {"watched": watched, "alone": side.step_seconds}
                compared = compare(options, in_turn(sides), [MOST], rounds=30)
                memory_bytes = watch.peak_bytes
        medians = compared.medians
        table(["side", "seconds a step"], [[name, medians[name]] for name in sides])
        small = memory_bytes < MOST_BYTES
        return result(
            NAME, ours=medians["watched"], peer=medians["alone"], ratio=compared.ratio(MOST), bar=BAR,
            ok=all_of(compared.ok, small), unit=UNIT,
            details={"seconds": medians, "compared": compared.details(), "memory_bytes": memory_bytes},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
