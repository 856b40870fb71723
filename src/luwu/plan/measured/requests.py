"""Requests for a run that is planned for this machine, and the plans that follow."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from luwu.core.errors import ConfigError
from luwu.core.quantities import absolute
from luwu.core.units import parse_bytes
from luwu.launch.settings import RunSettings, Settings, build_settings
from luwu.models.settings import ModelSettings
from luwu.models.shapes import ModelShape
from luwu.plan.choices import ELSEWHERE, OF_A_NETWORK, Choices
from luwu.plan.measured.planning import LocalPlan, forecast_here, plan_here
from luwu.plan.model_presets import read_config
from luwu.plan.requests import choose_model, named, with_adapters
from luwu.probe.machine import nearest_existing
from luwu.probe.training import measure_machine

SECONDS = 2.0
"""Seconds of each of the longer measurements."""


@dataclass(frozen=True)
class LocalRequest:
    """A run of `luwu train`, and its model's shape; ``workers``: numbers of them to compare."""

    settings: Settings
    model: ModelShape
    workers: tuple[int, ...]


def local_request(choices: Choices, store: Path) -> LocalRequest:
    """Return the run that `luwu train` would make with the same flags.

    Raises:
        ConfigError: a flag of a cluster, a model that cannot be trained here by that name, or what does not belong
            together.
    """
    choices.refuse((OF_A_NETWORK, ELSEWHERE), "beside --measured, which plans for this machine; leave it out")
    model, shape = _model(choices)
    processors = len(os.sched_getaffinity(0))
    batch = choices.batch or RunSettings().batch
    workers = (choices.workers,) if choices.workers is not None else tuple(sorted({1, min(processors, batch)}))
    run: dict[str, object] = {
        "batch": batch,
        "workers": workers[0],
        "micro_batch": choices.micro_batch,
        "memory": named("memory", parse_bytes, choices.memory),
        "dtype": choices.dtype,
        "checkpoint": choices.checkpoint,
        "stores": (str(store),),
    }
    given = {name: value for name, value in run.items() if value is not None}
    settings = build_settings({"model": model, "run": given, "optimizer": {"name": choices.optimizer}})
    return LocalRequest(settings, shape, workers)


def measure_and_plan(
    request: LocalRequest, store: Path, on_stage: Callable[[str], None] = lambda text: None
) -> LocalPlan:
    """Measure this machine with each number of workers, and give the plan with the most tokens a second.

    ``on_stage`` is called with the name of each measurement before it begins.

    Raises:
        LuwuError: the folder cannot be used, or a measurement failed.
    """
    plans = []
    for workers in request.workers:
        settings = request.settings.model_copy(
            update={"run": request.settings.run.model_copy(update={"workers": workers})}
        )
        chunks = forecast_here(settings, request.model)
        machine = measure_machine(settings, request.model, chunks, store, SECONDS, on_stage)
        disk = os.statvfs(nearest_existing(store))
        plans.append(plan_here(settings, request.model, machine, float(disk.f_bavail * disk.f_frsize)))
    return max(plans, key=lambda plan: plan.tokens_per_second)


def _model(choices: Choices) -> tuple[dict[str, object], ModelShape]:
    if choices.model is None:
        seq = choices.seq or int(ModelSettings.model_fields["seq"].default)
        shape = choose_model(Choices(**{**vars(choices), "seq": seq}))
        return {"layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "seq": seq}, shape
    path = Path(choices.model).expanduser()
    if not path.exists():
        raise ConfigError(
            f"model: expected a folder with a config.json beside --measured, as luwu train takes it, found "
            f"{choices.model!r}; or give --layers, --hidden and --heads"
        )
    shape = read_config(path)
    if choices.seq is not None:
        shape = shape.with_sequence(choices.seq)
    if choices.lora_rank is not None:
        shape = with_adapters(shape, choices.lora_rank)
    return {"path": absolute(path), "seq": shape.sequence}, shape
