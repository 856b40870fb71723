"""The result that every job of a history must have: it follows from the data alone, whatever happens to the job."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from luwu.core.protocols import COMMITTED, NOT_FINITE, ROLLED_BACK


class Counts(NamedTuple):
    """Committed steps, ended attempts, and attempts that were rolled back."""

    step: int = 0
    attempts: int = 0
    rolled_back: int = 0


class ViolationError(AssertionError):
    """A promise that a history breaks."""


def require(kept: bool, what: str) -> None:
    """Raise ViolationError where a promise is not kept."""
    if not kept:
        raise ViolationError(what)


@dataclass(frozen=True)
class Shape:
    """Sizes of a job.

    ``lasting``: a lost worker's place is kept for another. ``commit_every``:
    steps between two commit points; 0: only the end is one. ``resident``: memory keeps all chunks from step to step.
    ``at_once``: blocks that are updated at the same time, where the gradients of others are kept and a step is answered
    before it is on the disk; 0: it is answered then. ``waits_for_buffers``: workers vote when servers hold none of
    their gradients, as those of a large model must.
    """

    servers: int
    workers: int
    blocks: int
    steps: int
    max_norm: float | None
    lasting: bool
    commit_every: int = 1
    resident: bool = True
    at_once: int = 0
    waits_for_buffers: bool = False

    @property
    def squares(self) -> float:
        """Sum of squares of a whole gradient: each block of each server has 1."""
        return float(self.servers * self.blocks)

    @property
    def answers_early(self) -> bool:
        """True where a step is answered before its record is durable."""
        return self.max_norm is not None or self.commit_every != 1 or self.at_once > 0

    @property
    def points_follow(self) -> bool:
        """True where a commit point is written while later steps are made, up to the next one."""
        return self.servers == 1 and self.commit_every != 1 and self.resident

    def sure(self, told: int) -> int:
        """Return the last step that must be on the disks when workers have been told this one as committed."""
        if not self.answers_early or told == 0:
            return told
        if self.points_follow and self.commit_every > 0:
            return max(0, told // self.commit_every - 1) * self.commit_every
        return 0 if self.commit_every == 0 else (told - 1) // self.commit_every * self.commit_every

    @staticmethod
    def draw(dice: random.Random) -> Shape:
        """Draw one."""
        servers = dice.choice((1, 1, 2, 2, 3))
        commit_every = dice.choice((1, 1, 1, 2, 3, 0))
        return Shape(
            servers=servers,
            workers=dice.choice((1, 2, 2, 3)),
            blocks=dice.choice((1, 2)),
            steps=dice.choice((2, 3, 4)),
            max_norm=dice.choice((None, None, 1.0, 1e9)),
            lasting=dice.random() < 0.8,
            commit_every=commit_every,
            resident=dice.random() < 0.5,
            waits_for_buffers=dice.random() < 0.5,
            at_once=dice.choice((0, 1, 2)) if servers == 1 and commit_every == 1 else 0,
        )


@dataclass
class Reference:
    """Ends of the attempts, which depend on their numbers alone, and what the stores hold after each step.

    An attempt is given up by worker 0, or has a gradient that is not finite on one server, or is committed. A store's
    value after a step is the numbers of the attempts that made it.
    """

    seed: int
    shape: Shape
    given_up: set[int] = field(default_factory=set)
    spoiled: dict[int, int] = field(default_factory=dict)  # server with the gradient, by attempt
    values: list[tuple[int, ...]] = field(default_factory=lambda: [()])  # by step
    counts: list[Counts] = field(default_factory=lambda: [Counts()])  # by step

    def __post_init__(self) -> None:
        dice = random.Random(self.seed)
        attempt = 0
        while len(self.values) <= self.shape.steps:
            fate = dice.random()
            if fate < 0.1:
                self.given_up.add(attempt)
            elif fate < 0.2:
                self.spoiled[attempt] = dice.randrange(self.shape.servers)
            else:
                step = len(self.values)
                self.values.append((*self.values[-1], attempt))
                self.counts.append(Counts(step, attempt + 1, attempt + 1 - step))
            attempt += 1

    def end_of(self, attempt: int) -> int:
        """Return the end of an attempt that is not void, for its workers."""
        if attempt in self.given_up:
            return ROLLED_BACK
        return NOT_FINITE if attempt in self.spoiled else COMMITTED

    def allows(self, counts: Counts) -> bool:
        """Say whether a job may stand there: after a step, and perhaps after attempts that were rolled back."""
        step = self.counts[counts.step]
        since = range(step.attempts, counts.attempts)
        rolled_back = step.rolled_back + len(since) == counts.rolled_back
        return rolled_back and all(attempt in self.given_up or attempt in self.spoiled for attempt in since)
