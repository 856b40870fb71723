"""`luwu plan --measured` against ten runs of `luwu train` on this machine: step time, memory, and bytes of the store.

For each run the machine is measured, the run is planned, and then it is trained. What is measured is the machine: no
figure of a run goes into its prediction, and no run has a constant of its own.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.planned_runs import Case, compare, for_this_processor

NAME = "plan_measured"
BAR = "step time within 15 % (median 8 %), memory and bytes of the store within 5 %, for every run"
WITHIN, MEDIAN_WITHIN, BYTES_WITHIN = 0.15, 0.08, 0.05
BYTES = ("memory", "store", "read", "written")

CASES = (
    Case("in memory", 6, 384, 128, 16, 1, "float32"),
    Case("in memory, two workers", 6, 384, 128, 16, 2, "float32"),
    Case("in memory, larger", 8, 512, 128, 16, 1, "bfloat16"),
    Case("wide and shallow, two workers", 2, 1024, 128, 8, 2, "bfloat16"),
    Case("deep and narrow", 24, 192, 128, 16, 1, "float32"),
    Case("long sequences", 4, 384, 512, 8, 1, "float32"),
    Case("micro-batches", 6, 512, 128, 16, 1, "float32", micro_batch=4),
    Case("out of core, one worker", 16, 768, 64, 8, 1, "bfloat16", memory=None),
    Case("out of core, two workers", 12, 768, 64, 8, 2, "float32", memory=None),
    Case("out of core, states of 8 bits", 16, 768, 64, 8, 1, "bfloat16", memory=None, optimizer="adamw8bit"),
)
SMALLEST = Case("smallest", 1, 64, 32, 2, 1, "float32", memory=None)


def cases_here() -> tuple[Case, ...]:
    """The runs, each with a dtype that this processor can compute in."""
    return tuple(map(for_this_processor, CASES))


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    worst_bytes = max(abs(row["errors"][name]) for row in found["rows"] for name in row["errors"] if name != "seconds")
    yield (
        f"a step of {len(found['rows'])} runs of `luwu train` on this machine, as `luwu plan --measured` has it",
        f"within {found['worst']:.0%}, median {found['median']:.1%}; memory and bytes of the store within "
        f"{worst_bytes:.1%}",
        "the runs",
    )


def main() -> int:
    """Measures, plans, trains, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    full = () if options.check else cases_here()  # asking the processor takes a second
    cases = options.size(full, quick=CASES[:1], check=(SMALLEST,))
    steps, seconds = options.effort((15, 2.0), quick=(6, 0.3), check=(1, 0.05))

    def measure() -> dict[str, Any]:
        rows = []
        for case in cases:
            with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as scratch:
                rows.append(compare(case, Path(scratch), steps, seconds))
                planned, took = (rows[-1][side]["seconds"] for side in ("predicted", "measured"))
                print(f"{case.name}, {case.dtype}: {planned:.4g} s, {took:.4g} s")
        show(rows)
        errors = [abs(row["errors"]["seconds"]) for row in rows]
        missed = [f"{row['name']}: {name}" for row in rows for name in BYTES if abs(row["errors"][name]) > BYTES_WITHIN]
        ok = max(errors) <= WITHIN and statistics.median(errors) <= MEDIAN_WITHIN and not missed
        return result(
            NAME, ours=statistics.median(errors), peer=MEDIAN_WITHIN, bar=BAR, ok=ok,
            unit="median error of a step's time",
            details={"rows": rows, "worst": max(errors), "median": statistics.median(errors), "bytes_missed": missed},
        )  # fmt: skip

    return run(NAME, BAR, "median error of a step's time", measure, options)


def show(rows: list[dict[str, Any]]) -> None:
    """Two tables: time, and bytes."""
    print()
    table(
        ["run", "predicted, ms", "measured, ms", "error"],
        [
            [row["name"], 1e3 * row["predicted"]["seconds"], 1e3 * row["measured"]["seconds"], share(row, "seconds")]
            for row in rows
        ],
    )
    print()
    header = [text for name in BYTES for text in (f"{name}, MB", "measured", "error")]
    table(["run", *header], [[row["name"], *bytes_cells(row)] for row in rows])


def bytes_cells(row: dict[str, Any]) -> Iterator[object]:
    """Predicted, measured and error for each kind of bytes."""
    for name in BYTES:
        yield row["predicted"][name] / 1e6
        yield row["measured"][name] / 1e6
        yield share(row, name)


def share(row: dict[str, Any], name: str) -> str:
    """An error in words."""
    return f"{row['errors'][name]:+.1%}"


if __name__ == "__main__":
    sys.exit(main())
