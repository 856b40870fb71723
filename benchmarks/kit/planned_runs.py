"""Runs of `luwu train` on this machine, planned by `luwu plan --measured` and then trained."""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import luwu.data.source
from kit.common import PROGRAMS, BenchmarkError
from kit.processes import environment, run_json
from luwu.core.units import parse_bytes
from luwu.launch.settings import Settings, build_settings
from luwu.launch.trial import WATCHED_STEPS, TrialSettings, run_trial
from luwu.models.shapes import ModelShape, gpt_shape
from luwu.plan.measured.planning import LocalPlan, forecast_here, plan_here
from luwu.plan.requests import with_adapters
from luwu.probe.machine import bfloat16_products
from luwu.probe.training import measure_machine

NOTHING_BYTES = 1 << 20
"""Less than this a step is nothing, whatever the share: the record of a commit."""


ADAPTERS_SECONDS = 7200.0
"""Longest time of a run with adapters, which may make a store of billions of parameters first."""


class Case(NamedTuple):
    """A run of `luwu train`; ``memory``: the server's budget, None: as the least that it takes.

    With a ``lora_rank`` it is a program of its own over the same model, which `luwu train` cannot give adapters.

    See `for_this_processor` about the dtype.
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
    lora_rank: int = 0


def for_this_processor(case: Case) -> Case:
    """Return a run in float32 where the processor has no products in bfloat16: a step would take minutes."""
    return case if bfloat16_products() else case._replace(dtype="float32")


def compare(case: Case, folder: Path, steps: int, seconds: float) -> dict[str, Any]:
    """Return a run's predictions and measurements. It is measured last, so that nothing of it can be known before."""
    model, settings = shape_of(case), settings_of(case, folder, steps)
    machine = measure_machine(settings, model, forecast_here(settings, model), folder, seconds)
    plan = plan_here(settings, model, machine, float("inf"))
    trial = run_adapters(case, settings, folder, steps) if case.lora_rank else run_luwu_train(settings, folder)
    predicted = {name: value for name, value in predicted_of(plan).items() if name in trial.figures}
    return {
        "name": f"{case.name}, {case.dtype}",
        "case": case._asdict() | {"memory": settings.run.memory},
        "predicted": predicted,
        "measured": trial.figures,
        "errors": {name: error(predicted[name], trial.figures[name]) for name in predicted},
        "phases": {phase.name: {"seconds": phase.seconds, **phase.parts} for phase in plan.step.phases},
        "memory": dict(plan.memory),
        "step_seconds": trial.step_seconds,
    }


def shape_of(case: Case) -> ModelShape:
    """The GPT of a run over bytes."""
    shape = gpt_shape(
        case.layers, case.hidden, case.hidden // 64, sequence=case.seq, vocabulary=256, biases=False, name=case.name
    )
    return with_adapters(shape, case.lora_rank) if case.lora_rank else shape


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


class Measured(NamedTuple):
    """Seconds of the steps of a run, and its figures by name."""

    step_seconds: list[float]
    figures: dict[str, float]


def run_luwu_train(settings: Settings, folder: Path) -> Measured:
    """Train, and return the figures."""
    trial = run_trial(TrialSettings(settings=settings, folder=str(folder / "run")))
    figures = {
        "seconds": statistics.median(trial.step_seconds),
        "memory": float(trial.memory_bytes),
        "store": float(trial.store_bytes),
        "read": trial.bytes_read,
        "written": trial.bytes_written,
    }
    return Measured(trial.step_seconds, figures)


def run_adapters(case: Case, settings: Settings, folder: Path, steps: int) -> Measured:
    """Train adapters in a process with the server in it, whose memory is not told apart, and return the figures."""
    if (case.workers, case.micro_batch, case.optimizer, case.checkpoint) != (1, None, "adamw", True):
        raise BenchmarkError(f"{case.name}: the program of adapters knows nothing but one worker, adamw and recompute")
    wanted = {
        "folder": str(folder / "run"), "layers": case.layers, "hidden": case.hidden, "seq": case.seq,
        "batch": case.batch, "rank": case.lora_rank, "dtype": case.dtype, "memory": settings.run.memory,
        "warm_steps": TrialSettings.model_fields["warm_steps"].default, "steps": steps,
    }  # fmt: skip
    program = [sys.executable, str(PROGRAMS / "ours/adapters.py"), json.dumps(wanted)]
    found = run_json(program, environment(len(os.sched_getaffinity(0))), timeout=ADAPTERS_SECONDS)
    figures = {
        "seconds": statistics.median(found["step_seconds"]),
        "store": float(found["store_bytes"]),
        "read": found["bytes_read"],
        "written": found["bytes_written"],
    }
    return Measured(found["step_seconds"], figures)


def error(predicted: float, measured: float) -> float:
    """Return the error of a prediction, as a share of the measurement."""
    if max(predicted, measured) < NOTHING_BYTES and predicted == int(predicted):
        return 0.0
    return predicted / measured - 1
