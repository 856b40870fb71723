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
from heapq import heapify, heapreplace
from operator import mul
from typing import NamedTuple

from luwu.core.errors import ConfigError
from luwu.core.shares import even_counts
from luwu.core.words import counted

SETTLING_ATTEMPTS = 3
"""Attempts that each worker must have made with a division before another one may follow."""

KEPT_ATTEMPTS = 16
"""Last attempts of each worker that count."""

SHORTEST_TIME = 1e-6
"""Shortest time of an attempt, in seconds. A clock may see less, and a message may say less."""

LEAST_GAIN = 0.05
"""Share of the slowest worker's time that another division must save. A smaller gain is left."""

HELD_ATTEMPTS = 200
"""Attempts without another change, after one that did not gain what it should have; each time twice as many."""


def divide_rows(rows: int, costs: Sequence[float]) -> list[int]:
    """Divide rows among workers so that the slowest finishes as early as it can; each gets one row at least.

    Args:
        rows: rows of the batch.
        costs: seconds that each worker takes for a row, by rank. Equal ones give an even division.

    Raises:
        ConfigError: there are fewer rows than workers.
    """
    workers = len(costs)
    if rows < workers:
        raise ConfigError(
            f"rows: expected one for each of {counted(workers, 'worker')} at least, found {rows}; use a larger batch"
        )
    if min(costs) == max(costs):
        return even_counts(rows, workers)
    speed = sum(1 / cost for cost in costs)
    counts = [max(1, int(rows / (cost * speed))) for cost in costs]
    ends = [((count + 1) * cost, rank) for rank, (count, cost) in enumerate(zip(counts, costs, strict=True))]
    heapify(ends)
    for _ in range(rows - sum(counts)):
        _, rank = ends[0]
        counts[rank] += 1
        heapreplace(ends, ((counts[rank] + 1) * costs[rank], rank))
    while sum(counts) > rows:  # slow workers have got their one row
        several = (rank for rank in range(workers) if counts[rank] > 1)
        counts[max(several, key=lambda rank: counts[rank] * costs[rank])] -= 1
    return counts


class _Trial(NamedTuple):
    """A change of the division: the costs before it, and seconds for a row of the batch before it and as predicted."""

    before: list[float]
    measured: float
    predicted: float


class Balance:
    """The division of each attempt's batch among the workers of a run.

    A worker asks before each attempt, and tells what the attempt before took it. All workers get the same answer for
    an attempt: the first question for it decides. Batches are divided evenly at first, and differently only where that
    is worth it. A change that gains less than half of what it should have is taken back, because then a worker's time
    does not follow its rows.
    """

    def __init__(self, workers: int) -> None:
        self._costs = [1.0] * workers  # seconds for a row, by which batches are divided now
        self._times: list[deque[float]] = [deque(maxlen=KEPT_ATTEMPTS) for _ in range(workers)]  # for a row, since then
        self._heard = [-1] * workers  # attempt of each worker's last time
        self._since = 0  # first attempt with this division
        self._trial: _Trial | None = None
        self._held_until = 0
        self._holds = HELD_ATTEMPTS
        self._held_at = math.inf  # seconds for a row of the batch, while no change is made
        self._attempt = -1
        self._rows = 0
        self._counts: list[int] = []
        self._before: tuple[int, list[int]] = -1, []  # the attempt before and its division

    def hear(self, rank: int, attempt: int, seconds: float) -> None:
        """Note the time that an attempt took a worker, without waits; 0: it has none. It counts once."""
        counts = dict([self._before, (self._attempt, self._counts)]).get(attempt)
        if counts and seconds and self._heard[rank] < attempt >= self._since:
            self._heard[rank] = attempt
            self._times[rank].append(max(seconds, SHORTEST_TIME) / counts[rank])

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
        if attempt > self._attempt:
            self._look(attempt)
            self._before = self._attempt, self._counts
            self._counts = divide_rows(rows, self._costs)
            self._attempt, self._rows = attempt, rows
        elif rows != self._rows:
            raise ConfigError(
                f"rows: expected {self._rows}, as another worker has for this attempt, found {rows}; give every worker "
                "the same batch"
            )
        return self._counts

    def _look(self, attempt: int) -> None:
        """Change the division, or take a change back, once every worker has made some attempts with this one."""
        if any(len(times) < SETTLING_ATTEMPTS for times in self._times):
            return
        costs = [statistics.median(times) for times in self._times]
        measured = _slowest(self._counts, costs) / self._rows
        trial, self._trial = self._trial, None
        if trial is not None and trial.measured - measured < (trial.measured - trial.predicted) / 2:
            self._held_until, self._held_at = attempt + self._holds, trial.measured
            self._holds *= 2
            self._change(attempt, trial.before)
            return
        stays = abs(measured / self._held_at - 1) < 4 * LEAST_GAIN
        if attempt < self._held_until and stays:
            return
        predicted = _slowest(divide_rows(self._rows, costs), costs) / self._rows
        if predicted <= (1 - LEAST_GAIN) * measured:
            self._trial = _Trial(self._costs, measured, predicted)
            self._change(attempt, costs)

    def _change(self, attempt: int, costs: list[float]) -> None:
        self._costs, self._since = costs, attempt
        for times in self._times:
            times.clear()


def _slowest(counts: Sequence[int], costs: Sequence[float]) -> float:
    return max(map(mul, counts, costs))


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
            seconds: time that the attempt before took the worker, without waits; 0: it has none.

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
