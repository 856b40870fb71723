"""Places of a run's workers that launchers on other machines take, as a pure machine: no lock, no thread, no clock.

A place is a worker's rank. A launcher offers to run some workers, and waits until it is given places. Before the run
has begun nobody gets any until all of them are offered, because workers wait for each other only for a while. Later a
free place, whose launcher has gone, is given away at once: to the launcher that has waited longest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Grant(NamedTuple):
    """Places that a launcher gets."""

    launcher: Hashable
    ranks: tuple[int, ...]


class Places:
    """The places of a run on other machines.

    Args:
        ranks: the workers that are not started here.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._free = set(ranks)
        self._held: dict[Hashable, set[int]] = {}  # without those that have finished
        self._waiting: dict[Hashable, int] = {}  # workers that each offers, in the order of their coming
        self._begun = not self._free

    @property
    def begun(self) -> bool:
        """True once every place was given away; the run's own workers may start."""
        return self._begun

    @property
    def missing(self) -> int:
        """Workers that nobody offers to run."""
        return max(0, len(self._free) - sum(self._waiting.values()))

    @property
    def vacant(self) -> bool:
        """True while a place is empty."""
        return bool(self._free)

    @property
    def unfinished(self) -> bool:
        """True while a worker has not done its work."""
        return bool(self._free) or any(self._held.values())

    def launcher_of(self, rank: int) -> Hashable | None:
        """Return the launcher that runs a worker; None: nobody does, or it has finished."""
        return next((launcher for launcher, ranks in self._held.items() if rank in ranks), None)

    def held_by(self, launcher: Hashable) -> tuple[int, ...]:
        """Return the workers that a launcher runs and that have not finished, ascending."""
        return tuple(sorted(self._held.get(launcher, ())))

    def offered_by(self, launcher: Hashable) -> int:
        """Return the number of workers that a launcher offers to run and has not got."""
        return self._waiting.get(launcher, 0)

    def offer(self, launcher: Hashable, workers: int) -> list[Grant]:
        """Take a launcher's offer; return the places that are given away now, to it or to those before it."""
        self._waiting[launcher] = workers
        return self._give()

    def finish(self, rank: int) -> None:
        """Note that a worker has done its work. Its place is not given away any more."""
        for ranks in self._held.values():
            ranks.discard(rank)

    def go(self, launcher: Hashable) -> tuple[tuple[int, ...], list[Grant]]:
        """Note that a launcher has gone; return the places that it leaves empty, and those that are given away now."""
        self._waiting.pop(launcher, None)
        left = self._held.pop(launcher, set())
        self._free |= left
        return tuple(sorted(left)), self._give()

    def _give(self) -> list[Grant]:
        if not self._begun and self.missing:
            return []
        self._begun = True
        grants = []
        while self._free and self._waiting:
            launcher = next(iter(self._waiting))
            ranks = tuple(sorted(self._free)[: self._waiting.pop(launcher)])
            self._free -= set(ranks)
            self._held[launcher] = set(ranks)
            grants.append(Grant(launcher, ranks))
        return grants
