"""Worker processes without a rank: they have imported torch, and wait to take the place of a lost worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from luwu.core.errors import LuwuError
from luwu.core.words import counted
from luwu.launch.starting import ReportingProcess


class Spares:
    """Keeps a number of spare workers waiting.

    Args:
        wanted: how many; one that ends by itself is not replaced.
        start: starts a worker without a rank, given the path of its log.
        log_path: returns the path of the log of the spare with this number.
    """

    def __init__(self, wanted: int, start: Callable[[Path], ReportingProcess], log_path: Callable[[int], Path]) -> None:
        self._wanted = wanted
        self._start = start
        self._log_path = log_path
        self._waiting: list[ReportingProcess] = []

    def fill(self) -> Iterator[str]:
        """Start those that are missing; yield a sentence about each one that has ended by itself or cannot start."""
        for spare in [spare for spare in self._waiting if spare.process.poll() is not None]:
            self._waiting.remove(spare)
            self._wanted -= 1
            yield f"a spare worker has ended, its log is {spare.log}; {self._goes_on()}"
        while len(self._waiting) < self._wanted:
            logs = {spare.log for spare in self._waiting}
            free = next(path for number in itertools.count() if (path := self._log_path(number)) not in logs)
            try:
                self._waiting.append(self._start(free))
            except (OSError, LuwuError) as error:
                self._wanted -= 1
                yield f"a spare worker cannot start: {error}; {self._goes_on()}"

    def _goes_on(self) -> str:
        return f"the run goes on with {counted(self._wanted, 'spare')}"

    def take(self, rank: int, log: Path) -> ReportingProcess | None:
        """Give a spare this rank, and its log this path; return it, or None where none waits."""
        while self._waiting:
            spare = self._waiting.pop(0)
            before, spare.log = spare.log, spare.log.rename(log)
            if spare.process.poll() is None and spare.pipe.give_rank(rank):
                return spare
            spare.log = spare.log.rename(before)
        return None

    def kill(self) -> None:
        """Kill all that wait."""
        for spare in self._waiting:
            spare.process.kill()
            spare.process.wait()
        self._waiting.clear()
