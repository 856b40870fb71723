"""Starts workers again that a signal has killed, as often as a run allows it."""

from __future__ import annotations

from collections.abc import Iterator

from luwu.launch.processes import WorkerProcesses


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

    def replace_killed(self, workers: WorkerProcesses) -> Iterator[str]:
        """Start a worker in the place of each killed one, and yield a sentence about it."""
        for ended in workers.killed():
            if self._made == self._allowed or not self.may_begin:
                return
            self._made += 1
            log = workers.start_again(ended.rank)
            yield (
                f"worker {ended.rank} {ended.in_words()}, its log is {log}; starting another in its place "
                f"({self._made} of {self._allowed})"
            )
