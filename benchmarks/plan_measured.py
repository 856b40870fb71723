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
from typing import Any, NamedTuple

from kit.common import Row, arguments, result, run, table

import luwu.data.source
from luwu.core.units import parse_bytes
from luwu.launch.settings import Settings, build_settings
from luwu.launch.trial import WATCHED_STEPS, Trial, TrialSettings, run_trial
from luwu.models.shapes import ModelShape, gpt_shape
from luwu.plan.measured.planning import LocalPlan, forecast_here, plan_here
from luwu.probe.machine import bfloat16_products
from luwu.probe.training import measure_machine

NAME = "plan_measured"
BAR = "step time within 15 % (median 8 %), memory and bytes of the store within 5 %, for every run"
WITHIN, MEDIAN_WITHIN, BYTES_WITHIN = 0.15, 0.08, 0.05
BYTES = ("memory", "store", "read", "written")
NOTHING_BYTES = 1 << 20
"""Less than this a step is nothing, whatever the share: the record of a commit."""


class Case(NamedTuple):
    """A run of `luwu train`; ``memory``: the server's budget, None: as the least that it takes.

    A processor that has no products in bfloat16, where a step would take minutes, trains in float32 instead.
    """

    name: str
    layers: int
    hidden: int
    seq: int
    batch: int
    workers: int
    dtype: str
    memory: str | None = "8GiB"
    micro_batch: int | None = None
    optimizer: str = "adamw"
    checkpoint: bool = True


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
    if bfloat16_products():
        return CASES
    return tuple(case._replace(dtype="float32") for case in CASES)


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


def compare(case: Case, folder: Path, steps: int, seconds: float) -> dict[str, Any]:
    """Return a run's predictions and measurements. It is measured last, so that nothing of it can be known before."""
    model, settings = shape_of(case), settings_of(case, folder, steps)
    machine = measure_machine(settings, model, forecast_here(settings, model), folder, seconds)
    plan = plan_here(settings, model, machine, float("inf"))
    trial = run_trial(TrialSettings(settings=settings, folder=str(folder / "run")))
    predicted, measured = predicted_of(plan), measured_of(trial)
    return {
        "name": f"{case.name}, {case.dtype}",
        "case": case._asdict() | {"memory": settings.run.memory},
        "predicted": predicted,
        "measured": measured,
        "errors": {name: error(predicted[name], measured[name]) for name in predicted},
        "phases": {phase.name: {"seconds": phase.seconds, **phase.parts} for phase in plan.step.phases},
        "memory": dict(plan.memory),
        "step_seconds": trial.step_seconds,
    }


def shape_of(case: Case) -> ModelShape:
    """The GPT of a run over bytes."""
    return gpt_shape(
        case.layers, case.hidden, case.hidden // 64, sequence=case.seq, vocabulary=256, biases=False, name=case.name
    )


def settings_of(case: Case, folder: Path, steps: int) -> Settings:
    """The settings of a run that learns from some text of this package."""
    text = folder / "text.txt"
    text.write_text("".join(path.read_text() for path in sorted(Path(luwu.data.source.__file__).parent.glob("*.py"))))

    def settings(memory: int) -> Settings:
        return build_settings(
            {
                "model": {
                    "layers": case.layers, "hidden": case.hidden, "heads": case.hidden // 64, "seq": case.seq,
                },
                "data": {"path": str(text), "validation_windows": 1},
                "optimizer": {"name": case.optimizer},
                "run": {
                    "steps": TrialSettings.model_fields["warm_steps"].default + steps + WATCHED_STEPS,
                    "batch": case.batch, "micro_batch": case.micro_batch, "workers": case.workers,
                    "dtype": case.dtype, "memory": memory, "checkpoint": case.checkpoint,
                },
                "sample": {"length": 1},
            }
        )  # fmt: skip

    if case.memory is not None:
        return settings(parse_bytes(case.memory))
    return settings(forecast_here(settings(1), shape_of(case)).minimum_bytes)


def predicted_of(plan: LocalPlan) -> dict[str, float]:
    """Return the figures of a plan."""
    return {
        "seconds": plan.step.seconds,
        "memory": plan.memory_bytes,
        "store": float(plan.disk_bytes),
        "read": float(plan.bytes_read),
        "written": float(plan.server.written_bytes),
    }


def measured_of(trial: Trial) -> dict[str, float]:
    """Return the figures of a run."""
    return {
        "seconds": statistics.median(trial.step_seconds),
        "memory": float(trial.memory_bytes),
        "store": float(trial.store_bytes),
        "read": trial.bytes_read,
        "written": trial.bytes_written,
    }


def error(predicted: float, measured: float) -> float:
    """Return the error of a prediction, as a share of the measurement."""
    if max(predicted, measured) < NOTHING_BYTES and predicted == int(predicted):
        return 0.0
    return predicted / measured - 1


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
