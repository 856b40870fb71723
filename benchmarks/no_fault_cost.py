"""The step time of a run that bears the loss of workers, beside one that does not, where no worker is lost.

Two servers, each with two workers over shared memory, take steps in turn. One keeps the place of a lost worker, fences
one that hangs, and its workers give `step` a closure, which is called again for a void attempt; the other does nothing
of that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.luwu_side import LuwuSide, small_run
from kit.sampling import Bar, compare, in_turn

NAME = "no_fault_cost"
BAR = "step time with elasticity on, against the same with it off: at most 1 % more"
MOST = Bar("elastic", "rigid", 1.01, at_least=False)
UNIT = "seconds a step"
WORKERS = 2
RETURN_SECONDS, DEADLINE_SECONDS = 120, 60


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    seconds = found["seconds"]
    yield (
        "step time of two workers where lost workers may be replaced, none being lost",
        f"{seconds['elastic'] * 1e3:.1f} ms",
        f"without that {seconds['rigid'] * 1e3:.1f} ms",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    settings = small_run(options, 20)
    elastic = {"patience": (RETURN_SECONDS, DEADLINE_SECONDS), "closure": True}

    def measure() -> dict[str, Any]:
        with (
            LuwuSide({**settings, **elastic}, ranks=WORKERS, threads=1) as first,
            LuwuSide(settings, ranks=WORKERS, threads=1) as second,
        ):
            sides = {"elastic": first, "rigid": second}
            for side in sides.values():
                side.wait_ready()
            seconds = {name: side.step_seconds for name, side in sides.items()}
            compared = compare(options, in_turn(seconds), [MOST], rounds=30)
        medians = compared.medians
        table(["side", "seconds a step"], [[name, medians[name]] for name in sides])
        return result(
            NAME, ours=medians["elastic"], peer=medians["rigid"], ratio=compared.ratio(MOST), bar=BAR, ok=compared.ok,
            unit=UNIT, details={"seconds": medians, "compared": compared.details()},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
