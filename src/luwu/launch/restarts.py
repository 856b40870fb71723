"""Kills workers whose time is over, and starts workers again that a signal has killed, as often as a run allows it."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import suppress

from luwu.core.errors import LuwuError
from luwu.launch.processes import Ended, WorkerProcesses
from luwu.server.laggards import Patience

WORKER_RETURN_SECONDS = 120.0
"""Seconds that the others wait for a worker that is started again: it makes its model, and may have to import torch."""


class Restarts:
    """Counts the restarts of a run.

    Args:
        allowed: the most restarts of all workers together.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._made = 0
        self.may_begin = False
        """True once workers are in a run whose server keeps the places of lost ones."""
        self._overdue: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._fenced: set[int] = set()

    def patience(self, deadline_seconds: float) -> Patience:
        """Return the patience of a server in this process, which waits for no worker that is not started.

        Args:
            deadline_seconds: the longest time without progress of a worker that others wait for; 0: there is no limit.
        """
        seconds = WORKER_RETURN_SECONDS if self._allowed else 0.0
        return Patience(seconds, deadline_seconds, self.note_overdue, lambda: self._made < self._allowed)

    def error(self, workers: WorkerProcesses) -> LuwuError:
        """Return the first worker's failure as `WorkerProcesses.error`; it says so if all restarts are used."""
        used = 0 < self._allowed <= self._made
        return workers.error(f", and no restart is left of {self._allowed} (--restarts allows more)" if used else "")

    def note_overdue(self, rank: int, why: str) -> None:
        """Note that a worker's time is over; any thread may call it."""
        self._overdue.put((rank, why))

    def note_fenced(self, rank: int) -> bool:
        """Note that a server elsewhere has ended a worker's session; every other worker reports it.

        Returns True the first time.
        """
        if rank in self._fenced:
            return False
        self._fenced.add(rank)
        self.note_overdue(rank, f"the server has ended the session of worker {rank}")
        return True

    def note_start(self, rank: int) -> None:
        """Note that a worker is ready, after which its session may be ended once more."""
        self._fenced.discard(rank)

    def look(self, workers: WorkerProcesses, *, may_start: bool) -> Iterator[str]:
        """Kill workers whose time is over, start others in the places of killed ones, and yield a sentence about each.

        Args:
            workers: the run's processes.
            may_start: False once the workers were asked to stop: another would not know of it.
        """
        with suppress(queue.Empty):
            while True:
                rank, why = self._overdue.get_nowait()
                workers.kill_one(rank)
                yield f"{why}; it is killed"
        for ended in workers.failed():
            if not self._may_replace(ended, may_start=may_start):
                continue
            self.take(1)
            log = workers.start_again(ended.rank)
            where = f", its log is {log}" if log is not None else ""
            yield (
                f"worker {ended.rank} {ended.in_words()}{where}; starting another in its place "
                f"(restart {self.in_words()})"
            )

    def in_words(self) -> str:
        """Return how many restarts were made, for a user."""
        return f"{self._made} of {self._allowed}"

    @property
    def made(self) -> int:
        """Restarts until now."""
        return self._made

    def take(self, number: int) -> bool:
        """Use this number of the run's restarts; return False, and use none, if fewer are left."""
        if self._made + number > self._allowed:
            return False
        self._made += number
        return True

    def gives_up(self, workers: WorkerProcesses, *, may_start: bool) -> bool:
        """Return True if a worker has failed in whose place none is started."""
        return any(not self._may_replace(ended, may_start=may_start) for ended in workers.failed())

    def _may_replace(self, ended: Ended, *, may_start: bool) -> bool:
        return ended.status < 0 and may_start and self.may_begin and self._made < self._allowed
