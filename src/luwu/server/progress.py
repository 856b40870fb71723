"""Progress of a run's workers, and the laggards among them: those that the others wait for."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import NamedTuple

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.core.progress import Activity, WorkerPhase
from luwu.core.words import counted

_WORKING = (WorkerPhase.FORWARD, WorkerPhase.BACKWARD)

PAUSES_THAT_RECUR = 3


class Report(NamedTuple):
    """A worker's report.

    Attributes:
        attempts: attempts at steps that have ended.
        activity: its work at that moment.
        place: place in its program; empty where it makes progress.
        memory: bytes of its process that are in memory; 0: unknown.
        link: counts of its links; None: unknown.
    """

    attempts: int
    activity: Activity
    place: str = ""
    memory: int = 0
    link: pb.LinkCounts | None = None


class Laggard(NamedTuple):
    """A worker that others wait for, which has made no progress for ``seconds``.

    ``silent_seconds``: time since its last report.
    """

    rank: int
    seconds: float
    silent_seconds: float
    report: Report


@dataclass
class _Worker:
    """A worker's last report: when it came, since when it says the same, and since when another worker is further.

    Before its first one it counts as between steps, and ``heard_at`` is when it attached.
    """

    report: Report
    heard_at: float
    moved_at: float
    has_reported: bool = False
    behind_since: float | None = None

    def position(self, attempts: int) -> tuple[int, int, int]:
        """Return how far the worker is in the attempt that follows ``attempts`` others; larger is further.

        Over UDP all workers take blocks together, so one may wait for another before any has pushed.
        """
        activity = self.report.activity
        ended = self.report.attempts < attempts  # an attempt that has ended needed its vote, whatever it said last
        if ended or activity.phase is WorkerPhase.BETWEEN_STEPS:  # where it may evaluate
            return (0, 0, 0)
        if activity.phase is WorkerPhase.ENDING:
            return (2, 0, 0)
        return (1, activity.pushed, activity.acquired)


class ProgressTable:
    """Reports of the workers of a run. Times are of one clock, in seconds."""

    def __init__(self) -> None:
        self._workers: dict[int, _Worker] = {}
        self._attempts = 0
        self._attempts_since = 0.0
        self._pauses: list[float] = []  # the longest ones of any worker while it works

    @property
    def recurring_pause(self) -> float:
        """The longest time without progress, in seconds, that workers have had three times while they work.

        A single longer one may be that of a worker that hung.
        """
        return self._pauses[-1] if len(self._pauses) == PAUSES_THAT_RECUR else 0.0

    def expect(self, rank: int, now: float) -> None:
        """Note that a worker has attached: from now on it tells its progress."""
        self._workers[rank] = _Worker(Report(0, Activity(WorkerPhase.BETWEEN_STEPS)), now, now)

    def hear(self, rank: int, report: Report, now: float) -> None:
        """Note a worker's report, unless the worker has gone, or has not attached."""
        before = self._workers.get(rank)
        if before is None:
            return
        before.has_reported = True
        if (before.report.attempts, before.report.activity) != (report.attempts, report.activity):
            if before.report.activity.phase in _WORKING:
                longest = sorted([*self._pauses, now - before.moved_at], reverse=True)
                self._pauses = longest[:PAUSES_THAT_RECUR]
            before.moved_at = now
        before.report, before.heard_at = report, now

    def forget(self, rank: int) -> None:
        """Forget a worker that has gone."""
        self._workers.pop(rank, None)

    def knows(self, rank: int) -> bool:
        """Return True if the worker has attached, and has not gone."""
        return rank in self._workers

    def last(self, rank: int, now: float) -> tuple[Report, float] | None:
        """Return a worker's last report, and the seconds since then; None: it has not reported."""
        worker = self._workers.get(rank)
        return (worker.report, now - worker.heard_at) if worker is not None and worker.has_reported else None

    def laggards(self, attempts: int, now: float, patience: float = 0.0) -> list[Laggard]:
        """Return the workers that others wait for, and that have made no progress for ``patience`` seconds since.

        Args:
            attempts: attempts at steps that have ended at the server.
            now: the time.
            patience: the least time of a wait.
        """
        if attempts != self._attempts:
            self._attempts, self._attempts_since = attempts, now
        furthest = max((worker.position(attempts) for worker in self._workers.values()), default=(0, 0, 0))
        found = []
        for rank, worker in sorted(self._workers.items()):
            if worker.position(attempts) == furthest:
                worker.behind_since = None
                continue
            if worker.behind_since is None:
                worker.behind_since = now
            seconds = now - max(worker.moved_at, worker.behind_since, self._attempts_since)
            if seconds >= patience:
                found.append(Laggard(rank, seconds, now - worker.heard_at, worker.report))
        return found


class LaggardWatch:
    """Tells once of each laggard that the others wait for it and why, as soon as that is known, and when it goes on.

    It also tells that the deadline is too short, if workers make no progress for half of it while they work.

    Args:
        timeouts: timeouts of the network.
        deadline_seconds: time without progress after which a laggard counts as lost; 0: none does.
    """

    def __init__(self, timeouts: Timeouts, deadline_seconds: float) -> None:
        self._deadline = deadline_seconds
        self._told_pause = 0.0
        self._patience = timeouts.slow_worker_seconds
        self._silence = timeouts.idle_progress_seconds + 2 * timeouts.progress_seconds
        self._said: dict[int, float] = {}  # the begin of the wait, by rank

    def look(self, table: ProgressTable, step: int, attempts: int, now: float) -> list[str]:
        """Return what has changed since the last look, in sentences.

        Args:
            table: progress of the workers.
            step: committed steps.
            attempts: attempts at steps that have ended.
            now: time of the table's clock.
        """
        news = self._look_at_deadline(table.recurring_pause)
        laggards = {laggard.rank: laggard for laggard in table.laggards(attempts, now, self._patience)}
        for rank, laggard in laggards.items():
            explained = laggard.report.place or laggard.silent_seconds >= self._silence
            if rank not in self._said and explained:
                self._said[rank] = now - laggard.seconds
                news.append(f"step {step + 1} waits for worker {rank}, {self._why(laggard)}")
        for rank in sorted(self._said.keys() - laggards.keys()):
            seconds = now - self._said.pop(rank)
            if table.knows(rank):
                news.append(f"worker {rank} goes on after {seconds:.0f} s")
        return news

    def _look_at_deadline(self, pause: float) -> list[str]:
        if not self._deadline or pause < max(self._deadline / 2, 2 * self._told_pause):
            return []
        self._told_pause = pause
        return [
            f"workers make no progress for up to {pause:.0f} s while they work, and step_deadline_seconds is "
            f"{self._deadline:g}: a good worker may be counted as lost; set it to {4 * pause:.0f} or more, or to 0"
        ]

    def _why(self, laggard: Laggard) -> str:
        if laggard.silent_seconds >= self._silence:
            return (
                f"from which nothing has come for {laggard.silent_seconds:.0f} s: its process is stopped or hangs, its "
                "machine is down or swaps, or the network between is cut"
            )
        activity = laggard.report.activity
        return (
            f"which has made no progress for {laggard.seconds:.0f} s: it is {activity}, and has pushed "
            f"{counted(activity.pushed, 'block')}; its program is at {laggard.report.place}"
        )


class RunProgress:
    """A table by this machine's monotonic clock, which any thread may use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table = ProgressTable()

    def expect(self, rank: int) -> None:
        """Note that a worker has attached."""
        with self._lock:
            self._table.expect(rank, time.monotonic())

    def hear(self, rank: int, report: Report) -> None:
        """Note a worker's report."""
        with self._lock:
            self._table.hear(rank, report, time.monotonic())

    def forget(self, rank: int) -> None:
        """Forget a worker that has gone."""
        with self._lock:
            self._table.forget(rank)

    def last(self, rank: int) -> tuple[Report, float] | None:
        """Return a worker's last report, and the seconds since then; None: it has not reported."""
        with self._lock:
            return self._table.last(rank, time.monotonic())

    def laggards(self, attempts: int) -> list[Laggard]:
        """Return the workers that others wait for now; ``attempts``: those that have ended at the server."""
        with self._lock:
            return self._table.laggards(attempts, time.monotonic())

    def overdue(self, attempts: int, seconds: float) -> list[Laggard]:
        """Return the workers that others wait for and that have made no progress for this long."""
        with self._lock:
            return self._table.laggards(attempts, time.monotonic(), seconds)

    def look(self, watch: LaggardWatch, step: int, attempts: int) -> list[str]:
        """Let a watch look, see `LaggardWatch.look`."""
        with self._lock:
            return watch.look(self._table, step, attempts, time.monotonic())
