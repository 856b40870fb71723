"""A server's disk: its store has two versions of every chunk, and the record of the last commit."""

from __future__ import annotations

import random
from typing import NamedTuple

from harness.jobs.reference import Counts, ViolationError


class Version(NamedTuple):
    """A committed version: its counts, and the attempts that made it."""

    counts: Counts = Counts()
    value: tuple[int, ...] = ()


class Disk:
    """The disk, which outlives its server."""

    def __init__(self) -> None:
        self.current = Version()
        self._before: Version | None = None  # whole until the next step's chunks are written over it
        self._writing: Version | None = None  # record that was written, and is not durable yet

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the steps that the store can be opened at, the newest first."""
        return tuple(found.counts.step for found in (self.current, self._before) if found is not None)

    def open_at(self, step: int) -> None:
        """Open the store at one of its steps; a newer one is given up."""
        if self._before is not None and step == self._before.counts.step:
            self.current, self._before = self._before, None
        if self.current.counts.step != step:
            raise ViolationError(f"a store with the steps {self.steps} is opened at step {step}")

    def write_chunks(self) -> None:
        """Write chunks of the step after the current one, over the version before it."""
        self._before = None

    def write_record(self, version: Version) -> None:
        """Begin to write a commit record."""
        self._writing = version

    def sync(self) -> None:
        """Make the record durable."""
        if self._writing is not None:
            self._before, self.current, self._writing = self.current, self._writing, None

    def cut(self, dice: random.Random) -> None:
        """Lose the power: a record that was not synced is there or not."""
        if dice.random() < 0.5:
            self.sync()
        self._writing = None
