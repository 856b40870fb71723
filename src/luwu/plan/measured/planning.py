"""A run of `luwu train` on this machine: its needs, whether it fits, and the settings to take."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from luwu.core.manifest import element_bytes
from luwu.core.quantities import format_size
from luwu.core.units import bytes_text
from luwu.launch.settings import RunSettings, Settings
from luwu.models.shapes import ModelShape
from luwu.plan.compute import Kernels
from luwu.plan.constants import LOSS_BYTES_KEPT_PER_LOGIT
from luwu.plan.durability import keeps_of
from luwu.plan.machines import whole_mebibytes
from luwu.plan.measured.step import local_step
from luwu.plan.memory import SPARE_SUMS, TILE_LOGITS, boundary_bytes, layer_activation_bytes
from luwu.plan.planning import UNLIMITED, Miss
from luwu.plan.steps import StepTime
from luwu.probe.training import Machine
from luwu.server.forecast import Forecast, forecast

RUNS = Path("runs")
"""Folder of the runs that name no folder."""

TENTHS_OF_FREE = 8
"""Tenths of the free memory that a run may use; the rest is for other programs."""


@dataclass(frozen=True)
class LocalPlan:
    """A run with these settings, and its needs; ``memory`` is by kind, of all processes together."""

    settings: Settings
    model: ModelShape
    machine: Machine
    server: Forecast
    memory: Mapping[str, float]
    step: StepTime
    room_bytes: float
    disk_room_bytes: float

    @property
    def memory_bytes(self) -> float:
        """Bytes of all processes."""
        return sum(self.memory.values())

    @property
    def disk_bytes(self) -> int:
        """Bytes of the store, in all of its folders."""
        return sum(self.server.file_bytes)

    @property
    def bytes_read(self) -> int:
        """Bytes read from the store in a step: parameters in both passes, and states."""
        return 2 * self.server.parameters_read_bytes + self.server.states_read_bytes

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all workers."""
        return self.settings.run.batch * self.model.sequence / self.step.seconds

    @property
    def misses(self) -> list[Miss]:
        """Parts that do not fit."""
        run, found = self.settings.run, []
        if self.server.minimum_bytes > run.memory:
            change = f"raise the memory budget to {bytes_text(self.server.minimum_bytes)} (--memory)"
            found.append(Miss("server's memory budget", self.server.minimum_bytes - run.memory, change))
        if self.memory_bytes > self.room_bytes:
            change = "take a smaller --micro-batch, --batch or --memory, or free some memory"
            found.append(Miss("memory", self.memory_bytes - self.room_bytes, change))
        if self.disk_bytes > self.disk_room_bytes:
            change = "free some space, or name a folder on another disk with --store"
            found.append(Miss("disk", self.disk_bytes - self.disk_room_bytes, change))
        return found


def forecast_here(settings: Settings, model: ModelShape, memory_bytes: int | None = None) -> Forecast:
    """Return the forecast of the store and its server; ``memory``: another budget than the settings'."""
    run = settings.run
    return forecast(
        model.block_elements(),
        dtype=run.dtype,
        optimizer=settings.optimizer.name,
        folders=max(1, len(run.stores)),
        memory_bytes=run.memory if memory_bytes is None else memory_bytes,
        workers=run.workers,
        keeps=keeps_of(run.commit_points),
        adapter_elements=model.adapter_elements(),
    )


def plan_here(settings: Settings, model: ModelShape, machine: Machine, disk_room_bytes: float) -> LocalPlan:
    """Work a run out on a machine that was measured with its model, workers and micro-batch."""
    server = forecast_here(settings, model)
    workers = machine.workers * worker_bytes(model, settings.run)
    memory = {
        "parameters, states and gradients": float(server.memory_bytes - unused_bytes(server)),
        "server": machine.costs.server_bytes,
        "workers' activations": workers,
        "workers": machine.costs.workers_bytes,
    }
    step = local_step(model, settings.run, machine, server)
    return LocalPlan(settings, model, machine, server, memory, step, float(machine.free_bytes), disk_room_bytes)


def unused_bytes(server: Forecast) -> int:
    """Return the memory for kept gradients that nothing uses: where all else is in memory, updates are not behind."""
    return server.kept_bytes if server.parameters_read_bytes + server.states_read_bytes == 0 else 0


def worker_bytes(model: ModelShape, run: RunSettings) -> float:
    """Return the bytes of a worker's own: inputs of layers, one layer's activations, gradients on their way."""
    rows = -(-run.batch // run.workers)
    at_once = min(rows, run.micro_batch or rows)
    element = element_bytes(run.dtype)
    activations = layer_activation_bytes(model, at_once, Kernels(float32=element == 4))
    layers = activations if run.checkpoint else model.layers * activations * rows / at_once
    inputs = boundary_bytes(model, rows, element) if run.checkpoint else 0.0
    logits = min(rows * model.sequence * model.vocabulary, TILE_LOGITS) * LOSS_BYTES_KEPT_PER_LOGIT.value
    leaving = model.adapter_size if model.lora_rank else max(model.layer_parameters()) + 2 * model.outside_size
    sums = 4 * SPARE_SUMS * model.trained_layer_size if at_once < rows and element == 2 else 0
    return inputs + max(layers, logits) + element * leaving + sums


def suggest(plan: LocalPlan) -> LocalPlan:
    """Return the request with all in memory if there is room, else with the room there is.

    Fewer rows at a time if needed.
    """
    found = plan
    for run in _fitting(plan):
        found = plan_here(run, plan.model, plan.machine, plan.disk_room_bytes)
        if not found.misses:
            break
    return found


def _fitting(plan: LocalPlan) -> Iterable[Settings]:
    """Settings to try, the best first."""
    room = plan.room_bytes * TENTHS_OF_FREE / 10
    whole = forecast_here(plan.settings, plan.model, UNLIMITED).memory_bytes
    rows = -(-plan.settings.run.batch // plan.settings.run.workers)
    at_once = min(rows, plan.settings.run.micro_batch or rows)
    while at_once >= 1:
        run = _with_run(plan.settings, micro_batch=None if at_once == rows else at_once)
        others = plan.memory_bytes - plan.server.memory_bytes
        others += plan.machine.workers * (
            worker_bytes(plan.model, run.run) - worker_bytes(plan.model, plan.settings.run)
        )
        budget = max(plan.server.minimum_bytes, min(whole, int(room - others)))
        yield _with_run(run, memory=whole_mebibytes(budget))
        at_once //= 2


def _with_run(settings: Settings, **changes: object) -> Settings:
    run = RunSettings.model_validate(settings.run.model_dump() | changes)
    return settings.model_copy(update={"run": run})


def command(plan: LocalPlan, store: Path | None) -> str | None:
    """Return the `luwu train` that was planned, as a new run, for a shell; None: adapters need a program of one's own.

    Args:
        plan: the plan.
        store: the store's folder; None: in the run folder.
    """
    if plan.model.lora_rank:
        return None
    model, run = plan.settings.model, plan.settings.run
    words: dict[str, object] = {"model": model.path}
    if model.path is None:
        words |= {"layers": model.layers, "hidden": model.hidden, "heads": model.heads}
    words |= {
        "seq": model.seq,
        "optimizer": plan.settings.optimizer.name,
        "batch": run.batch,
        "micro-batch": run.micro_batch,
        "workers": run.workers,
        "memory": format_size(run.memory),
        "dtype": run.dtype,
        "run": _new_run(),
        "store": store,
    }
    flags = [part for name, value in words.items() if value is not None for part in (f"--{name}", str(value))]
    return shlex.join(["luwu", "train", *flags, *([] if run.checkpoint else ["--no-checkpoint"])])


def _new_run() -> Path:
    """Return a run folder that does not exist yet: an earlier run would be resumed, or refuse the settings."""
    names = itertools.chain(["planned"], (f"planned-{number}" for number in itertools.count(2)))
    return next(folder for folder in (RUNS / name for name in names) if not folder.exists())
