"""The step time of a run that is traced, beside one that is not.

One run of two workers over shared memory takes steps. In turn the steps of a sample are traced, as `luwu trace` does it
(server and workers record every span, and the trace is fetched after them), or none is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.luwu_side import LuwuSide, small_run
from kit.sampling import Bar, compare, in_turn

from luwu.control.tracing import ask_in, trace_run
from luwu.core.trace import RECORD

NAME = "trace_cost"
BAR = "step time while a run is traced, against the same without: at most 3 % more"
MOST = Bar("traced", "plain", 1.03, at_least=False)
UNIT = "seconds a step"
WORKERS = 2
MOST_BYTES = 64 << 20


class Traced:
    """Samples a side whose steps are traced, and counts the spans of each step.

    Of a sample's steps the last two are not in the trace: without a commit point it ends when the second step after its
    last one begins.
    """

    def __init__(self, side: LuwuSide, steps: int) -> None:
        self._side, self._steps = side, steps - 2
        self.spans = 0

    def sample(self) -> float:
        """Return the seconds of a step, of the slower worker."""
        samples: list[float] = []

        def measure(seconds: float) -> None:
            if samples:
                time.sleep(seconds)
            else:  # the trace has begun
                samples.append(self._side.step_seconds())

        trace = trace_run([ask_in(self._side.run_folder)], self._steps, MOST_BYTES, lambda text: None, measure)
        self.spans = sum(len(process.records) for process in trace.processes) // RECORD.itemsize // self._steps
        return samples[0]


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    seconds = found["seconds"]
    yield (
        f"step time of two workers while `luwu trace` records {found['spans']:,} spans of each step",
        f"{seconds['traced'] * 1e3:.1f} ms",
        f"without that {seconds['plain'] * 1e3:.1f} ms",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    # A disk's own variation would hide the cost.
    settings = {**small_run(options, 40), "durable": "1000 steps", "wait": "answer"}
    settings["steps"] = options.effort(40, check=3)

    def measure() -> dict[str, Any]:
        with LuwuSide(settings, ranks=WORKERS, threads=1) as side:
            side.wait_ready()
            side.sample()
            traced = Traced(side, int(settings["steps"]))
            sides = {"traced": traced.sample, "plain": side.step_seconds}
            compared = compare(options, in_turn(sides), [MOST], rounds=30)
        medians = compared.medians
        table(["side", "seconds a step"], [[name, medians[name]] for name in sides])
        return result(
            NAME, ours=medians["traced"], peer=medians["plain"], ratio=compared.ratio(MOST), bar=BAR, ok=compared.ok,
            unit=UNIT, details={"seconds": medians, "spans": traced.spans, "compared": compared.details()},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
