"""A worker's progress within a step, and a server's with each block, as both tell people who look at a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class WorkerPhase(IntEnum):
    """Phase of a worker's work, with the numbers of control.proto."""

    BETWEEN_STEPS = 0
    FORWARD = 1
    BACKWARD = 2
    AFTER_BACKWARD = 3
    ENDING = 4
    """It has voted on the step, and waits for the others and the server."""


PHASE_WORDS = {
    WorkerPhase.BETWEEN_STEPS: "between two steps",
    WorkerPhase.FORWARD: "in forward",
    WorkerPhase.BACKWARD: "in backward",
    WorkerPhase.AFTER_BACKWARD: "after backward",
    WorkerPhase.ENDING: "at the end of the step",
}


class BlockView(IntEnum):
    """A server's work with a block at one moment, with the numbers of native/pipeline/block_view.h, in their order."""

    ON_DISK = 0
    READING = 1
    IN_MEMORY = 2
    HANDED_OUT = 3
    GRADIENT_IN = 4
    UPDATING = 5
    WRITING = 6
    UPDATED = 7


@dataclass(frozen=True)
class Activity:
    """A worker's activity at one moment.

    Attributes:
        phase: phase of its work.
        block: name of the block whose values it took last; empty before the first.
        acquired: number of times that it has begun to take a block's values in this attempt at a step.
        pushed: number of blocks whose gradients it has begun to push in this attempt at a step.
    """

    phase: WorkerPhase = WorkerPhase.BETWEEN_STEPS
    block: str = ""
    acquired: int = 0
    pushed: int = 0

    def __str__(self) -> str:
        words = PHASE_WORDS[self.phase]
        computes = self.phase in (WorkerPhase.FORWARD, WorkerPhase.BACKWARD)
        return f"{words} of block {self.block}" if computes and self.block else words
