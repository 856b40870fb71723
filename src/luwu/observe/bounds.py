"""Causes of a step's length: from the mean figures of some steps to the one part that binds them.

The worker whose own work takes longest is on the step's critical path: its time is its computation, its batches, and
its waits for the server. A wait belongs to what the server was short of meanwhile.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

BUSY_DISK = 0.8
"""Share of a step in which the disk has something to do, from which it is what the server is short of."""

BUSY_UPDATES = 0.5
"""The same of updates, of the time of all their threads."""

WAITED = 0.1
"""Share of blocks, or of chunks of states, that were not in memory when they were wanted, from which the disk is it."""


SLOWER = 0.2
"""Share of the slowest worker's own work from which its excess, and not the work, is what binds."""


class Part(Enum):
    """A part of a step on its critical path."""

    COMPUTE = "compute"
    DATA = "data"
    WORKER = "worker"
    DISK = "disk"
    UPDATE = "update"
    PULL = "pull"
    PUSH = "push"


class Served(NamedTuple):
    """A server's counts in a step, as means; shares are of the time of all steps together.

    Attributes:
        read_bytes, written_bytes: of its store.
        reading, writing: shares of the step in which reads, and writes, were under way.
        updating: share of its update threads' time in which they updated.
        threads: number of these.
        pulls_waited: share of pulls that found their block not in memory, or not updated yet; each step counts by its
            waits.
        states_waited: share of chunks whose gradient was there before their states; likewise.
        shared_memory: workers share this memory, so that no link lies between.
    """

    read_bytes: float
    written_bytes: float
    reading: float
    writing: float
    updating: float
    threads: int
    pulls_waited: float
    states_waited: float
    shared_memory: bool

    @property
    def disk(self) -> float:
        """Share of the step in which the disk had something to do, one way at least."""
        return max(self.reading, self.writing)

    @property
    def updates(self) -> float:
        """Share of the step in which one update thread at least updated, if no two did at the same time."""
        return min(1.0, self.threads * self.updating)


class Step(NamedTuple):
    """Mean figures of some steps. Times are in seconds.

    Attributes:
        seconds: time of the step, from one answer to the next, or of its slowest worker where that is longer.
        tokens: of all workers.
        rank: worker that is the slowest most often.
        own: the slowest worker's time without its waits for the server.
        data: part of it in which it made its batches.
        excess: part of it by which one and the same worker is slower than the others.
        forward, backward, end: the slowest worker's waits for the server, by where it stood.
        pulled_bytes, pushed_bytes: of all workers.
        served: the server's counts; None: it is another machine's.
        steps: number of steps.
    """

    seconds: float
    tokens: float
    rank: int
    own: float
    data: float
    excess: float
    forward: float
    backward: float
    end: float
    pulled_bytes: float
    pushed_bytes: float
    served: Served | None
    steps: int

    @property
    def waits(self) -> float:
        """The slowest worker's waits together."""
        return self.forward + self.backward + self.end


class Bound(NamedTuple):
    """A part that binds a step, and its seconds on the critical path."""

    part: Part
    seconds: float


def bounds_of(step: Step) -> list[Bound]:
    """Return the parts of a step's critical path, the longest one first; those that take no time are left out.

    A worker that is clearly slower than the others comes before the work that all have.
    """
    found = {
        Part.COMPUTE: step.own - step.data - step.excess,
        Part.DATA: step.data,
        Part.WORKER: step.excess,
    }
    if (short := short_of(step.served)) is not None:
        found[short] = step.waits
    else:
        pulls = step.forward + pulls_share(step) * step.backward
        found |= {Part.PULL: pulls, Part.PUSH: step.waits - pulls}
    bounds = [Bound(part, seconds) for part, seconds in found.items() if seconds > 0]
    work = step.own if step.excess >= SLOWER * step.own else step.excess
    weights = {Part.WORKER: work}
    return sorted(bounds, key=lambda bound: -weights.get(bound.part, bound.seconds))


def pulls_share(step: Step) -> float:
    """Return the share of a backward's bytes that are pulled: half of a step's pulls, beside all of its pushes."""
    pulled = step.pulled_bytes / 2
    return pulled / (pulled + step.pushed_bytes) if pulled else 0.0


def short_of(served: Served | None) -> Part | None:
    """Return what a server was short of while workers waited for it; None: not known, or the way to it."""
    if served is None:
        return None
    if served.updating >= BUSY_UPDATES:
        return Part.UPDATE
    was_waited_for = max(served.pulls_waited, served.states_waited) >= WAITED
    if served.disk >= BUSY_DISK or (was_waited_for and served.disk >= served.updates):
        return Part.DISK
    if served.shared_memory:
        return Part.UPDATE if served.updates >= served.disk else Part.DISK
    return None
