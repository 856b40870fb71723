"""Measurements of this machine for a run of one shape: its kernels, its disk, and the fixed cost of a step."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import luwu.core.settings
from luwu.launch.settings import Settings, build_settings
from luwu.launch.trial import WATCHED_STEPS, Trial, TrialSettings, run_trial
from luwu.models.shapes import BLOCK_ALIGNMENT_ELEMENTS, ModelShape, gpt_shape
from luwu.probe.kernel_times import KernelSeconds, measure_kernels
from luwu.probe.machine import memory_bytes, nearest_existing, processor_name
from luwu.probe.rates import DiskRates, measure_disk, measure_update
from luwu.server.forecast import Forecast

SMALL = gpt_shape(2, BLOCK_ALIGNMENT_ELEMENTS, 1, sequence=8, vocabulary=256, biases=False)
"""A model with next to no arithmetic: its steps take the fixed cost alone."""

DEEP_LAYERS = 18
STEPS_PER_SECOND = 50
LEAST_STEPS = 5
"""Steps of a small model's run for each second that a measurement may take, and the least number of steps."""

TEXT_BYTES = 1 << 18
SCRATCH = ".luwu-plan-"
"""Prefix of the folders for small models' runs; the process's id follows."""

QUICK = 8
"""Factor by which the kernels of the small model are timed for a shorter time."""

OnStage = Callable[[str], None]


def ignore(text: str) -> None:
    """Ignore the text."""


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step beside kernels, updates and the disk: fixed, for each block, and for each slice of a block.

    They are what the interpreter, the worker's hooks, waking the server up and a commit's syncs take. ``server_bytes``
    and ``workers_bytes`` are the memory of the processes before a model comes into them.
    """

    fixed_seconds: float
    block_seconds: float
    slice_seconds: float
    server_bytes: float
    workers_bytes: float


@dataclass(frozen=True)
class Machine:
    """This machine with a number of workers on it. Rates are bytes or elements a second of all processors together."""

    processor: str
    processors: int
    memory_bytes: int
    free_bytes: int
    workers: int
    threads: int
    disk: DiskRates
    update_rate: float
    verified_update_rate: float
    kernels: KernelSeconds
    costs: StepCosts


def measure_machine(
    settings: Settings, model: ModelShape, chunks: Forecast, folder: Path, seconds: float, on_stage: OnStage = ignore
) -> Machine:
    """Measure the machine, which takes about half a minute and as much memory as some layers of the model.

    Args:
        settings: the run's settings.
        model: the model that the run trains.
        chunks: chunks of the run's store; the disk is measured with their sizes.
        folder: the folder for the store.
        seconds: time for each of the longer measurements; each kernel has an eighth of it, and runs of
            small models 50 steps per second of it.
        on_stage: called with the name of each measurement before it begins.

    Raises:
        StorePermissionError, StoreSpaceError, StoreError: the folder cannot be used.
        LuwuError: a process that measures failed.
    """
    run, optimizer = settings.run, settings.optimizer.name
    crew = f"{run.workers} worker{'s' * (run.workers > 1)}"
    on_stage(f"measuring the disk of {folder}")
    disk = measure_disk(
        folder, read_bytes=chunks.chunk_state_bytes, write_bytes=chunks.chunk_record_bytes, seconds=seconds
    )
    rows = -(-run.batch // run.workers)
    total, free = memory_bytes()
    on_stage(f"measuring the server's updates for {crew}")
    rates = [measure_update(optimizer, run.dtype, run.workers, verify=each, seconds=seconds) for each in (False, True)]
    on_stage(f"measuring the model's kernels with {crew}")
    kernels = measure_kernels(model, run.dtype, rows, run.micro_batch, run.workers, seconds / QUICK)
    return Machine(
        processor=processor_name(),
        processors=len(os.sched_getaffinity(0)),
        memory_bytes=total,
        free_bytes=free,
        workers=run.workers,
        threads=max(1, len(os.sched_getaffinity(0)) // run.workers),
        disk=disk,
        update_rate=rates[0],
        verified_update_rate=rates[1],
        kernels=kernels,
        costs=measure_costs(settings, folder, seconds, on_stage),
    )


def measure_costs(settings: Settings, folder: Path, seconds: float, on_stage: OnStage = ignore) -> StepCosts:
    """Train a small model of two depths, and with its batch cut in two: the cost of depth, of slices, and of a step."""
    run, existing = settings.run, nearest_existing(folder)
    timed_steps = max(LEAST_STEPS, round(seconds * STEPS_PER_SECOND))
    remove_leftovers(existing)
    with tempfile.TemporaryDirectory(dir=existing, prefix=f"{SCRATCH}{os.getpid()}-") as scratch:
        text = Path(scratch, "text.txt")
        source = Path(luwu.core.settings.__file__).read_text(encoding="utf-8")
        text.write_text(source * (1 + TEXT_BYTES // len(source)), encoding="utf-8")

        def train(layers: int, micro_batch: int | None = None) -> Trial:
            cut = ", one sequence at a time" if micro_batch else ""
            on_stage(
                f"training a small model of {layers} layers with {run.workers} worker{'s' * (run.workers > 1)}{cut}"
            )
            wanted = small_settings(settings, layers, micro_batch, text, timed_steps)
            return run_trial(TrialSettings(settings=wanted, folder=str(Path(scratch, f"{layers}-{micro_batch}"))))

        shallow, deep = train(SMALL.layers), train(DEEP_LAYERS)
        rows = 2
        kernels = measure_kernels(SMALL, run.dtype, rows, None, run.workers, seconds / QUICK / QUICK)
        layer = layer_seconds(kernels, run.checkpoint)
        per_block = (median(deep) - median(shallow)) / (DEEP_LAYERS - SMALL.layers)
        slice_seconds = 0.0
        if run.micro_batch is not None:
            halves = measure_kernels(SMALL, run.dtype, rows, 1, run.workers, seconds / QUICK / QUICK)
            more = 2 * layer_seconds(halves, run.checkpoint) - layer
            slice_seconds = max(0.0, (median(train(DEEP_LAYERS, 1)) - median(deep)) / DEEP_LAYERS - more)
        return StepCosts(
            fixed_seconds=max(0.0, median(shallow) - SMALL.layers * per_block - root_seconds(kernels)),
            block_seconds=max(0.0, per_block - layer),
            slice_seconds=slice_seconds,
            server_bytes=float(shallow.server_bytes),
            workers_bytes=float(shallow.workers_bytes),
        )


def remove_leftovers(folder: Path) -> None:
    """Remove the files of measuring processes that were killed."""
    for path in folder.glob(f"{SCRATCH}*"):
        owner = path.name.removeprefix(SCRATCH).partition("-")[0]
        if not Path("/proc", owner).exists():
            shutil.rmtree(path, ignore_errors=True)


def small_settings(settings: Settings, layers: int, micro_batch: int | None, text: Path, timed_steps: int) -> Settings:
    """Return the run with a model of ``layers`` layers, and two sequences a worker."""
    shape = replace(SMALL, layers=layers)
    return build_settings(
        {
            "model": {"layers": shape.layers, "hidden": shape.hidden, "heads": shape.heads, "seq": shape.sequence},
            "data": {"path": str(text), "validation_windows": 1},
            "optimizer": {"name": settings.optimizer.name},
            "run": {
                "disk_full_wait_seconds": 0,
                "steps": TrialSettings.model_fields["warm_steps"].default + timed_steps + WATCHED_STEPS,
                "batch": 2 * settings.run.workers,
                "micro_batch": micro_batch,
                "workers": settings.run.workers,
                "dtype": settings.run.dtype,
                "checkpoint": settings.run.checkpoint,
            },
            "sample": {"length": 1},
        }
    )


def layer_seconds(kernels: KernelSeconds, checkpoint: bool) -> float:
    """Return the seconds of a layer's forward, its recompute if there is one, and its backward."""
    return kernels.layer_forward + backward_seconds(kernels, checkpoint)


def backward_seconds(kernels: KernelSeconds, checkpoint: bool) -> float:
    """Return the seconds of a layer's backward and of its recompute, if any, which leaves the last product out."""
    again = kernels.layer_forward - kernels.last_product if checkpoint else 0.0
    return again + kernels.layer_backward


def root_seconds(kernels: KernelSeconds) -> float:
    """Return the seconds of the kernels outside the layers."""
    return kernels.root_forward + kernels.root_backward


def median(trial: Trial) -> float:
    """Seconds of a trial's step."""
    return statistics.median(trial.step_seconds)
