"""The worker processes of a run on this machine: started, watched, and never left behind."""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from luwu.core.errors import LuwuError, WorkerLostError
from luwu.core.room import NO_WAIT, Room
from luwu.launch.folder import RunFolder
from luwu.launch.job import EXIT_SERVER_LOST, SPARE
from luwu.launch.reports import NO_RANK, Report, reported_error
from luwu.launch.spares import Spares
from luwu.launch.starting import ReportingProcess, start_reporting
from luwu.launch.words import checked_report, typed_error

LOG_LINES = 12
"""Lines of a dead worker's log that the user is shown."""

LOG_BYTES = 64 * 1024

LAST_WORDS_SECONDS = 1.0
"""The longest wait for the last reports of a worker that has ended; its children may hold the pipe open."""


def _preload() -> dict[str, str]:
    """Return the allocator for workers, unless the user preloads something."""
    library = worker_allocator()
    return {"LD_PRELOAD": library} if library and "LD_PRELOAD" not in os.environ else {}


def worker_environments(workers: int) -> list[dict[str, str]]:
    """The environment of each worker: its place, its share of the processors, the allocator.

    OMP_NUM_THREADS and OMP_WAIT_POLICY of the user's environment stay. Without them, the threads of a kernel sleep
    while they wait for each other: a spinning thread would hold up the server's threads and other programs, which share
    the processors with the workers.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    common = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"} | os.environ | _preload()
    return [common | {"RANK": str(rank), "WORLD_SIZE": str(workers)} for rank in range(workers)]


@dataclass(frozen=True)
class Ended:
    """End of a worker: an exit status, negative for a signal."""

    rank: int
    status: int

    def in_words(self) -> str:
        """Describe the exit code or signal for a user."""
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with exit code {self.status}"


def ended_from_outside(ended: Sequence[Ended]) -> bool:
    """Return True if workers ended because of something else than an error of their own, and any did."""
    return bool(ended) and all(each.status < 0 or each.status == EXIT_SERVER_LOST for each in ended)


class WorkerProcesses:
    """N worker processes, and spare ones.

    Args:
        folder: with the job and the logs.
        workers: how many.
        on_report: called with (rank, report) for what they report through a pipe each, in a thread for each.
        room: the wait for a full disk where the logs are made.
        spares: processes that wait for the place of a lost worker.
    """

    def __init__(
        self,
        folder: RunFolder,
        workers: int,
        on_report: Callable[[int, Report], None] = lambda rank, report: None,
        room: Room = NO_WAIT,
        spares: int = 0,
    ) -> None:
        self._folder = folder
        self._room = room
        self._on_report = on_report
        self._errors: dict[int, LuwuError] = {}
        self._order_of_death: list[Ended] = []
        self._environments = worker_environments(workers)
        self._workers: list[ReportingProcess] = []
        self._preparing = set(range(workers))  # ranks that have not reported that they are ready
        self._spares = Spares(spares, self._start_spare, folder.spare_log_path)
        try:
            for rank in range(workers):
                self._workers.append(self._start(rank))
        except (OSError, LuwuError):
            self.kill()
            raise

    def _start(self, rank: int) -> ReportingProcess:
        return self._start_as(rank, self._folder.log_path(rank), self._environments[rank])

    def _start_spare(self, log: Path) -> ReportingProcess:
        return self._start_as(NO_RANK, log, self._environments[0] | {SPARE: "1"})

    def _start_as(self, rank: int, log: Path, environment: dict[str, str]) -> ReportingProcess:
        job = self._folder.job_path
        return start_reporting("luwu.train.worker", job, log, environment, rank, self._take_report, self._room)

    def running(self) -> bool:
        """Return True while any worker runs."""
        self._look()
        return len(self._order_of_death) < len(self._workers)

    def failed(self) -> list[Ended]:
        """Return the workers that have ended with anything but success, in their order."""
        self._look()
        return [ended for ended in self._order_of_death if ended.status]

    def kill_one(self, rank: int) -> None:
        """Kill a worker; `failed` then has it. Another rank is none."""
        if rank < len(self._workers):
            self._workers[rank].process.kill()

    def keep_spares(self) -> Iterator[str]:
        """Start spare workers that are missing, once no other prepares itself; yield sentences for the user."""
        if not self._preparing:
            yield from self._spares.fill()

    def start_again(self, rank: int) -> tuple[Path, bool]:
        """Let a spare take the place of a worker that has ended, or start another process there.

        Returns:
            Where the log of the worker that has ended is now, and whether a spare has taken the place.
        """
        self._look()
        self._order_of_death = [ended for ended in self._order_of_death if ended.rank != rank]
        self._preparing.add(rank)
        log = self._folder.log_path(rank)
        kept = next(path for number in itertools.count(1) if not (path := log.with_suffix(f".{number}.log")).exists())
        log.rename(kept)
        self._workers[rank].pipe.wait(LAST_WORDS_SECONDS)
        spare = self._spares.take(rank, log)
        self._workers[rank] = spare or self._start(rank)
        return kept, spare is not None

    def ask_to_stop(self) -> None:
        """Ask rank 0 to have all workers stop at the end of the step; it tells the others."""
        if self._workers[0].process.poll() is None:
            self._workers[0].process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Give the workers time to end by themselves."""
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill all workers that are left, at once."""
        self._spares.kill()
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.kill()
        for worker in self._workers:
            worker.process.wait()

    def error(self) -> LuwuError:
        """Return the first worker's failure that no other caused: its own error, or its end and its log."""
        failures = self.failed()
        causes = [ended for ended in failures if ended.status != EXIT_SERVER_LOST]
        first = (causes or failures)[0]
        log = self._folder.log_path(first.rank)
        text = read_tail(log)
        self._workers[first.rank].pipe.wait(LAST_WORDS_SECONDS)
        typed = self._errors.get(first.rank) or typed_error(text)
        if typed is not None:
            return typed
        last_lines = "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES:]) or "  (empty)"
        return WorkerLostError(
            f"worker {first.rank}: expected to finish the run, but it {first.in_words()}; "
            f"the last lines of {log}:\n{last_lines}"
        )

    def _take_report(self, rank: int, report: Report) -> None:
        if report["kind"] == "start":
            self._preparing.discard(rank)
        if report["kind"] != "error":
            self._on_report(rank, report)
            return
        try:
            self._errors[rank] = reported_error(checked_report(rank, report))
        except WorkerLostError as error:
            self._errors[rank] = error

    def _look(self) -> None:
        known = {ended.rank for ended in self._order_of_death}
        for rank, worker in enumerate(self._workers):
            if rank not in known and (status := worker.process.poll()) is not None:
                self._order_of_death.append(Ended(rank, status))


def read_tail(log: Path) -> str:
    """The end of a log file."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace").rstrip()


PR_SET_PDEATHSIG = 1


def die_with(launcher_pid: int) -> None:
    """Have the kernel kill this process when the launcher dies: a second belt under the endpoint's own."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher_pid:  # it died before the line above
        os._exit(EXIT_SERVER_LOST)


def worker_allocator() -> str | None:
    """The shared library that worker processes take their memory from: tcmalloc where it is installed.

    glibc's own leaves holes between activations, so that a worker grows with the depth of its model, and it gives pages
    back that the next block asks for again (docs/decisions/0004).
    """
    return ctypes.util.find_library("tcmalloc_minimal")
