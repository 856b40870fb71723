"""Division of a batch among the workers of a run by their speeds, so that all finish together.

The decision is a pure machine, `Balance`: measured times in, numbers of rows out, without lock or clock.
docs/decisions/0025-uneven-workers.md says why it decides so.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Sequence
from operator import mul

from luwu.core.errors import ConfigError
from luwu.core.words import counted

SETTLING_ATTEMPTS = 3
"""Attempts that each worker must have made with a division before another one may follow."""

KEPT_ATTEMPTS = 16
"""Last attempts of each worker that count."""

SHORTEST_SECONDS = 1e-6
"""Shortest time of an attempt. A clock may see less, and a message may say less."""

LEAST_GAIN = 0.05
"""Share of the slowest worker's time that another division must save. Less is not worth other bits."""


def divide_rows(rows: int, costs: Sequence[float]) -> list[int]:
    """Divide rows among workers so that the slowest finishes as early as it can; each gets one row at least.

    Args:
        rows: rows of the batch.
        costs: seconds that each worker takes for a row, by rank.

    Raises:
        ConfigError: there are fewer rows than workers.
    """
    workers = len(costs)
    if rows < workers:
        raise ConfigError(
            f"rows: expected one for each of {counted(workers, 'worker')} at least, found {rows}; use a larger batch"
        )
    speed = sum(1 / cost for cost in costs)
    counts = [max(1, int(rows / (cost * speed))) for cost in costs]
    for _ in range(rows - sum(counts)):
        counts[min(range(workers), key=lambda rank: (counts[rank] + 1) * costs[rank])] += 1
    while sum(counts) > rows:  # slow workers have got their one row
        several = (rank for rank in range(workers) if counts[rank] > 1)
        counts[max(several, key=lambda rank: counts[rank] * costs[rank])] -= 1
    return counts


class Balance:
    """The division of each attempt's batch among the workers of a run.

    A worker asks before each attempt, and tells what the attempt before took it. All workers get the same answer for
    an attempt: the first question for it decides. Batches are divided evenly until every worker has made
    `SETTLING_ATTEMPTS`, and differently only where that is worth it. The times of a division say what each worker
    takes for a row; they are measured anew after each change, so work that does not grow with the rows is seen, too.
    """

    def __init__(self, workers: int) -> None:
        self._times: list[deque[float]] = [deque(maxlen=KEPT_ATTEMPTS) for _ in range(workers)]
        self._costs = [1.0] * workers  # seconds for a row, as last measured
        self._attempt = -1
        self._since = 0  # first attempt with this division
        self._rows = 0
        self._counts: list[int] = []

    def hear(self, rank: int, attempt: int, seconds: float) -> None:
        """Note the time that an attempt took a worker, without waits; 0: it made none."""
        if self._counts and seconds > 0 and attempt >= self._since:
            self._times[rank].append(max(seconds, SHORTEST_SECONDS))

    def forget(self, rank: int) -> None:
        """Forget the times of a worker that is lost: another one may come to its place."""
        self._times[rank].clear()

    def divide(self, attempt: int, rows: int) -> list[int]:
        """Return the numbers of rows of an attempt's batch, by rank.

        Raises:
            ConfigError: the attempt is over, another worker named other rows for it, or see `divide_rows`.
        """
        if attempt < self._attempt:
            raise ConfigError(f"attempt: expected {self._attempt} or a later one, found {attempt}, which is over")
        if attempt == self._attempt:
            if rows != self._rows:
                raise ConfigError(
                    f"rows: expected {self._rows}, as another worker has for this attempt, found {rows}; give every "
                    "worker the same batch"
                )
            return self._counts
        counts = self._next(rows)
        if counts != self._counts:
            self._since = attempt
            for times in self._times:
                times.clear()
        self._attempt, self._rows, self._counts = attempt, rows, counts
        return counts

    def _next(self, rows: int) -> list[int]:
        settled = all(len(times) >= SETTLING_ATTEMPTS for times in self._times)
        slowest = math.inf
        if settled:
            medians = [statistics.median(times) for times in self._times]
            self._costs = [median / count for median, count in zip(medians, self._counts, strict=True)]
            slowest = max(medians)
        counts = divide_rows(rows, self._costs)
        if rows != self._rows:
            return counts
        gains = max(map(mul, self._costs, counts)) <= (1 - LEAST_GAIN) * slowest
        return counts if settled and gains else self._counts


class RunBalance:
    """The `Balance` of a run, which any thread may use. It begins with the first question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._balance: Balance | None = None

    def divide(self, rank: int, workers: int, attempt: int, rows: int, seconds: float) -> list[int]:
        """Note what a worker tells, and return the division of its attempt's batch, by rank; see `Balance`.

        Args:
            rank: the worker's.
            workers: number of workers of the run.
            attempt: the attempt's number.
            rows: rows of the batch, over all workers.
            seconds: time that the attempt before took the worker, without waits; 0: it made none.

        Raises:
            ConfigError: see `Balance.divide`; or ``seconds`` is no time.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ConfigError(f"seconds: expected a time of 0 or more, found {seconds}")
        with self._lock:
            self._balance = self._balance or Balance(workers)
            self._balance.hear(rank, attempt - 1, seconds)
            return list(self._balance.divide(attempt, rows))

    def forget(self, rank: int) -> None:
        """Forget the times of a worker that is lost."""
        with self._lock:
            if self._balance is not None:
                self._balance.forget(rank)
