"""The course of a run that is killed again and again: when to kill it, and what must hold after each kill."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kit.common import BenchmarkError
from kit.kills.processes import Life, watch

OPENING, TRAINING, COMMITTING = "opening", "training", "committing"
MOMENTS = (TRAINING, COMMITTING, OPENING, COMMITTING, TRAINING)
STEPS_BEFORE = 4  # committed in a life before its kill, at most
FIRST_SECONDS = {OPENING: 0.2, TRAINING: 0.02, COMMITTING: 0.005}  # until some were seen
KEPT = 15


@dataclass
class Scenario:
    """A row of the table: the process that was killed, the number of kills, and the errors found afterwards.

    ``commit_every``: steps between two commit points. ``servers``: those that share the parameters; several answer a
    step when it is on the disk.
    """

    name: str
    commit_every: int = 1
    servers: int = 1
    kills: int = 0
    wrong: list[str] = field(default_factory=list)
    resumes: int = 0
    seconds: float = 0.0
    moments: Counter[str] = field(default_factory=Counter)
    slowest_notice_seconds: float = 0.0

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note that something is wrong unless it holds."""
        if not holds:
            self.wrong.append(f"kill {self.kills}: {otherwise}")


class Clock:
    """Draws the moments of kills, from a seed and from what opening, a step and a commit took so far."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._seen = {name: deque([seconds], KEPT) for name, seconds in FIRST_SECONDS.items()}

    def number(self, below: int) -> int:
        """Draw which of several is killed."""
        return self._random.randrange(below)

    def sleep(self, seconds: float) -> None:
        """Return after a random part of this time."""
        time.sleep(self._random.uniform(0, seconds))

    def wait(self, moment: str, lives: Sequence[Life], others: Sequence[Life] = ()) -> None:
        """Return at a random instant of this moment in the lives of workers; all must still live then."""
        one = lives[0]
        before = self._random.randint(0, STEPS_BEFORE)
        everyone = [*lives, *others]

        def alive() -> bool:
            if any(life.status is not None for life in everyone):
                tails = "\n".join(life.tail() for life in everyone)
                raise BenchmarkError(f"a process ended before its kill\n{tails}")
            return True

        if moment != OPENING:
            thing, count = ("voting", before + 1) if moment == COMMITTING else ("committed", before)
            first = one.counts[thing]
            watch(
                everyone, lambda: alive() and "resumed" in one.said and one.counts[thing] - first >= count,
                f"{count} times {thing!r} of {one.name}",
            )  # fmt: skip
        self.sleep(statistics.median(self._seen[moment]))

    def learn(self, lives: Sequence[Life]) -> None:
        """Take the times of lives that have ended."""
        for life in lives:
            self._seen[OPENING].extend(life.seconds.get("resumed", [])[:1])
            self._seen[COMMITTING].extend(life.seconds.get("committed", [])[-3:])
            whole = zip(life.seconds.get("voting", []), life.seconds.get("committed", []), strict=False)
            self._seen[TRAINING].extend([computed + committed for computed, committed in whole][-3:])


class Course:
    """Record of a run over all of its lives: the last step announced, and every loss, by (rank, step)."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.last = 0
        self.losses: dict[tuple[int, int], str] = {}

    def take(self, workers: Sequence[Life]) -> None:
        """Take what the workers of one set have said, by rank, and look where they resumed."""
        resumed = [life.said["resumed"] for life in workers if "resumed" in life.said]
        self.scenario.expect(len(set(resumed)) <= 1, f"the workers resumed at different steps, {resumed}")
        if resumed:
            self.scenario.resumes += 1
            self.scenario.expect(
                resumed[0] in self._may_resume_at(), f"{self.last} was announced, {resumed[0]} was resumed"
            )
        for rank, life in enumerate(workers):
            for step, loss in life.losses.items():
                known = self.losses.setdefault((rank, step), loss)
                self.scenario.expect(known == loss, f"two losses of worker {rank} at step {step}")
            self.last = max(self.last, life.committed)

    def _may_resume_at(self) -> set[int]:
        """Return the steps at which the next life may resume.

        A step may have been committed in the moment between the commit and its announcement. A single server, and
        several with commit points, answer a step before it is on the disk, but no step after it.
        """
        every = self.scenario.commit_every
        if every == 1:
            return {self.last, self.last + 1} | ({self.last - 1} if self.scenario.servers == 1 else set())
        point = self.last - self.last % every
        steps = {point}
        if point == self.last and point > 0:
            steps.add(point - every)
        if (self.last + 1) % every == 0:
            steps.add(self.last + 1)
        return steps

    def compare(self, disturbed: Any, undisturbed: Sequence[Life], undisturbed_end: Any) -> None:
        """Compare the losses, and what was left at the end, with those of a run that nobody disturbed."""
        for (rank, step), loss in sorted(self.losses.items()):
            expected = undisturbed[rank].losses.get(step)
            self.scenario.expect(loss == expected, f"step {step} of worker {rank}: loss {loss}, expected {expected}")
        self.scenario.expect(disturbed == undisturbed_end, f"the end: expected {undisturbed_end}, found {disturbed}")
