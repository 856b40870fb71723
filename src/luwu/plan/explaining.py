"""Explanations of a run: what bound its steps, what would help, and by how much.

The model of a step is the planner's: as long as the slowest of what works at the same time. It is fitted to the run:
the slowest worker's own work takes what it took, and what the worker waited for was busy for as long as the server
counted, for its waits at least, and where nobody counted, as on a link, for all of the step. A change scales that time,
and no step is shorter than the worker's own work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from luwu.core.aggregation import MEAN
from luwu.core.quantities import format_size
from luwu.launch.settings import Settings
from luwu.observe.bounds import Bound, Part, Step, bounds_of, short_of
from luwu.plan.disk_changes import DiskChanges, Moved

LEAST_GAIN = 1 + 5 / 100
"""Factor of tokens a second below which a remedy is not worth a line."""

RECOMPUTE_SHARE = 1 / 4
"""Share of a worker's computation that is recompute: a forward of two parts beside a backward of four."""

ONE_WAY = 9 / 10
"""Share of the time of a disk's busier way below which the other way is idle."""


MOST_GAIN = 100.0
"""Bound of a gain; where a step is all of what a change takes away, nothing would be left to divide by."""


class Remedy(NamedTuple):
    """A change that would help.

    Attributes:
        name: a word for it.
        text: the change, with its flag where there is one.
        gain: factor of tokens a second.
    """

    name: str
    text: str
    gain: float


class Explanation(NamedTuple):
    """The steps of a run, the parts that bind them, the longest first, and the remedies, the best first."""

    step: Step
    bounds: list[Bound]
    remedies: list[Remedy]


def explain(step: Step, settings: Settings, changes: DiskChanges) -> Explanation:
    """Explain a run.

    Args:
        step: mean figures of its steps.
        settings: of the run.
        changes: what its settings change about the disk's bytes.
    """
    bounds = bounds_of(step)
    # The disk's remedies are mostly settings, and worth a line also where something else takes longer.
    parts = [bound.part for place, bound in enumerate(bounds) if not place or bound.part is Part.DISK]
    found = [remedy for part in parts for remedy in REMEDIES[part](step, settings, changes)]
    remedies = [remedy for remedy in found if remedy.gain >= LEAST_GAIN]
    return Explanation(step, bounds, sorted(remedies, key=lambda remedy: -remedy.gain))


def busy_seconds(step: Step) -> float:
    """Return the time of a step in which what it waited for was busy."""
    short = short_of(step.served)
    if step.served is None or short is None:
        return step.seconds
    share = step.served.disk if short is Part.DISK else step.served.updates
    return max(step.waits, share * step.seconds)


def _gain(step: Step, after: float) -> float:
    """Return the gain where the step takes ``after`` seconds."""
    return step.seconds / max(after, step.seconds / MOST_GAIN)


def _scaled(step: Step, factor: float) -> float:
    """Return the gain where what binds the step takes ``factor`` of its time."""
    return _gain(step, max(step.own, step.seconds - (1 - factor) * busy_seconds(step)))


def _moving(step: Step, moved: Moved) -> float:
    """Return the gain where a step moves other bytes between disk and memory.

    A disk that is idle one way while the other way binds is taken to have a rate for each; else both share one.
    """
    served = step.served
    assert served is not None
    idler, busier = sorted((served.reading, served.writing))
    if idler < ONE_WAY * busier:
        return _scaled(step, max(served.reading * moved.read, served.writing * moved.written) / busier)
    now = served.read_bytes + served.written_bytes
    if not now:
        return 1.0  # no bytes that could be fewer
    return _scaled(step, (served.read_bytes * moved.read + served.written_bytes * moved.written) / now)


def _larger_batch(step: Step, settings: Settings) -> Remedy:
    """Return the gain of a batch of twice the size, which moves the same bytes."""
    batch = 2 * settings.run.batch
    busy = busy_seconds(step)
    gain = 2 * step.seconds / max(2 * step.own, busy + 2 * (step.seconds - busy))
    return Remedy("batch", f"a batch of twice the size, in a new run (--batch {batch})", gain)


def _of_disk(step: Step, settings: Settings, changes: DiskChanges) -> Iterator[Remedy]:
    memory = format_size(changes.memory_bytes)
    yield Remedy("memory", f"all of it in the server's memory (--memory {memory})", _moving(step, changes.memory))
    yield Remedy("durable", "every tenth step on the disk (--durable '10 steps')", _moving(step, changes.durable))
    yield Remedy(
        "states", "optimizer states of 8 bits, in a new run (--optimizer adamw8bit)", _moving(step, changes.states)
    )
    yield Remedy("disk", "a second drive of the same rate, in a new run (--store twice)", _scaled(step, 1 / 2))
    yield _larger_batch(step, settings)


def _of_update(step: Step, settings: Settings, changes: DiskChanges) -> Iterator[Remedy]:
    yield Remedy("threads", "twice the processors for the server", _scaled(step, 1 / 2))
    yield _larger_batch(step, settings)


def _of_link(step: Step, settings: Settings, changes: DiskChanges) -> Iterator[Remedy]:
    yield Remedy("link", "a link of twice the rate", _scaled(step, 1 / 2))
    if settings.run.dtype == "float32" and settings.run.device == "cuda":  # some processors are slow with 16 bits
        yield Remedy("dtype", "blocks of 16 bits, in a new run (--dtype bfloat16)", _scaled(step, 1 / 2))
    yield _larger_batch(step, settings)


def _of_compute(step: Step, settings: Settings, changes: DiskChanges) -> Iterator[Remedy]:
    compute = step.own - step.data - step.excess
    yield Remedy(
        "workers", "twice the workers, on processors or GPUs of their own",
        _gain(step, step.seconds - compute / 2),
    )  # fmt: skip
    if settings.run.checkpoint:
        text = "activations that are kept instead of computed again, where memory has room (--no-checkpoint)"
        yield Remedy("checkpoint", text, _gain(step, step.seconds - RECOMPUTE_SHARE * compute))


def _of_worker(step: Step, settings: Settings, changes: DiskChanges) -> Iterator[Remedy]:
    text = f"worker {step.rank} as fast as the others: see what else its machine does"
    yield Remedy("worker", text, _gain(step, step.seconds - step.excess))
    if not settings.run.balance and settings.run.device == "cpu" and settings.run.aggregate == MEAN:
        workers, others = settings.run.workers, step.own - step.excess
        together = workers / (1 / step.own + (workers - 1) / others) if others > 0 else 0.0
        text = "sequences divided by the workers' speeds; the run is then not reproducible to the bit (--balance)"
        yield Remedy("balance", text, _gain(step, step.waits + together))


def _of_data(step: Step, settings: Settings, changes: DiskChanges) -> Iterator[Remedy]:
    text = "batches that are there at once: look at the disk of the run folder"
    yield Remedy("data", text, _gain(step, step.seconds - step.data))


REMEDIES: dict[Part, Callable[[Step, Settings, DiskChanges], Iterator[Remedy]]] = {
    Part.COMPUTE: _of_compute,
    Part.DATA: _of_data,
    Part.WORKER: _of_worker,
    Part.DISK: _of_disk,
    Part.UPDATE: _of_update,
    Part.PULL: _of_link,
    Part.PUSH: _of_link,
}
"""Remedies for each part, with what they gain."""
