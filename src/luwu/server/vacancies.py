"""Places of lost workers that a run keeps for others, and how long. Functions may be called from any thread."""

from __future__ import annotations

import threading
import time

from luwu.control.timeouts import PATIENCE_SECONDS


class Vacancies:
    """The ranks of lost workers that a run waits for.

    Args:
        seconds: the longest wait for one; 0: a run waits for none.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._ends: dict[int, float] = {}  # time at which the wait is over, by rank
        self._untold: dict[int, tuple[float, str]] = {}  # when to tell of a wait, and the words, by rank

    def __contains__(self, rank: int) -> bool:
        with self._lock:
            return rank in self._ends

    def keep(self, rank: int, words: str = "") -> None:
        """Begin to wait for a worker of this rank, or go on if the one that joined meanwhile is lost, too.

        ``words`` are for users, if the wait is not a short one, see `news`.
        """
        now = time.monotonic()
        with self._lock:
            if rank not in self._ends:
                self._ends[rank] = now + self.seconds
                self._untold[rank] = now + PATIENCE_SECONDS, words

    def news(self) -> list[str]:
        """Return the words of waits that have lasted for `PATIENCE_SECONDS`, once each.

        A worker that `luwu train` starts again is there before.
        """
        now = time.monotonic()
        with self._lock:
            due = [rank for rank, (when, _) in self._untold.items() if now >= when]
            return [self._untold.pop(rank)[1] for rank in due]

    def fill(self, rank: int) -> bool:
        """End the wait for a rank: a worker is there; False: nobody waited for it."""
        with self._lock:
            self._untold.pop(rank, None)
            return self._ends.pop(rank, None) is not None

    def overdue(self) -> str:
        """Name the rank that nobody has joined at in time; empty: there is none."""
        now = time.monotonic()
        with self._lock:
            late = [rank for rank, end in self._ends.items() if now > end]
        if not late:
            return ""
        return f"worker {late[0]} was lost, and no other joined at its place within {self.seconds:g} s"
