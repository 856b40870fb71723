"""The worker processes of a run on this machine: started, watched, and never left behind."""

from __future__ import annotations

import ctypes.util
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from luwu.core.errors import LuwuError, WorkerLostError
from luwu.core.exits import Exit
from luwu.core.room import NO_WAIT, Room
from luwu.launch.folder import RunFolder
from luwu.launch.reports import Report, reported_error
from luwu.launch.starting import ReportingProcess, start_reporting
from luwu.launch.template import Template
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


def worker_environment(workers: int, here: int | None = None) -> dict[str, str]:
    """Return the environment of all workers: their number, a worker's share of the processors, the allocator.

    ``here`` of them run on this machine; None: all.

    OMP_NUM_THREADS and OMP_WAIT_POLICY of the user's environment stay. Without them, the threads of a kernel sleep
    while they wait for each other: a spinning thread would hold up the server's threads and other programs, which share
    the processors with the workers.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, workers if here is None else here))
    common = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"} | os.environ | _preload()
    return common | {"WORLD_SIZE": str(workers)}


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
    return bool(ended) and all(each.status < 0 or each.status == Exit.SERVER_LOST for each in ended)


class WorkerProcesses:
    """Worker processes, which are forks of a template.

    Args:
        folder: with the job and the logs.
        workers: number of workers in the run.
        on_report: called with (rank, report) for what they report through a pipe each, in a thread for each.
        room: the wait for a full disk where the logs are made.
        ranks: the workers that run here; None: all.
    """

    def __init__(
        self,
        folder: RunFolder,
        workers: int,
        on_report: Callable[[int, Report], None] = lambda rank, report: None,
        room: Room = NO_WAIT,
        ranks: Sequence[int] | None = None,
    ) -> None:
        ranks = range(workers) if ranks is None else ranks
        self._folder = folder
        self._room = room
        self._on_report = on_report
        self._errors: dict[int, LuwuError] = {}
        self._left: set[int] = set()  # ranks whose work is done, and told
        self._order_of_death: list[Ended] = []
        self._environment = worker_environment(workers, len(ranks))
        self._workers: dict[int, ReportingProcess] = {}
        self._template = self._start_template()
        try:
            for rank in ranks:
                self._workers[rank] = self._start(rank)
        except (OSError, LuwuError):
            self.kill()
            raise

    def _start_template(self) -> Template:
        folder = self._folder
        return Template("luwu.train.worker", folder.job_path, folder.template_log_path, self._environment, self._room)

    def _start(self, rank: int) -> ReportingProcess:
        if self._template.ended:
            self._template = self._start_template()
        fork = partial(self._template.fork, rank)
        return start_reporting(fork, self._folder.log_path(rank), rank, self._take_report, self._room)

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
        if rank in self._workers:
            self._workers[rank].process.kill()

    def start_again(self, rank: int) -> Path | None:
        """Start another worker in the place of one that has ended; return where that one's log is now, if it is."""
        self._look()
        self._order_of_death = [ended for ended in self._order_of_death if ended.rank != rank]
        kept = self._folder.keep_log(rank)
        self._workers[rank] = self._start(rank)
        return kept

    def ask_to_stop(self) -> None:
        """Ask rank 0, if it runs here, to have all workers stop at the end of the step; it tells the others."""
        if 0 in self._workers and self._workers[0].process.poll() is None:
            self._workers[0].process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Give the workers time to end by themselves."""
        deadline = time.monotonic() + seconds
        while self.running() and time.monotonic() < deadline:
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill all workers that are left, at once."""
        self._template.kill()

    def error(self, hint: str = "") -> LuwuError:
        """Return the first worker's failure that no other caused: its own error, or its end with a hint, and its log.

        Args:
            hint: why no other worker has been started in the place of one that a signal has killed.
        """
        failures = self.failed()
        causes = [ended for ended in failures if ended.status != Exit.SERVER_LOST]
        first = (causes or failures)[0]
        log = self._folder.log_path(first.rank)
        text = read_tail(log)
        if not text and self._template.ended:
            log = self._folder.template_log_path
            text = read_tail(log)
        self._workers[first.rank].pipe.wait(LAST_WORDS_SECONDS)
        typed = self._errors.get(first.rank) or typed_error(text)
        if typed is not None:
            return typed
        last_lines = "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES:]) or "  (empty)"
        return WorkerLostError(
            f"worker {first.rank}: expected to finish the run, but it {first.in_words()}"
            f"{hint if first.status < 0 else ''}; "
            f"the last lines of {log}:\n{last_lines}"
        )

    def _take_report(self, rank: int, report: Report) -> None:
        if report["kind"] == "left":
            self._left.add(rank)
            return
        if report["kind"] != "error":
            self._on_report(rank, report)
            return
        try:
            self._errors[rank] = reported_error(checked_report(rank, report))
        except WorkerLostError as error:
            self._errors[rank] = error

    def _look(self) -> None:
        known = {ended.rank for ended in self._order_of_death}
        for rank, worker in self._workers.items():
            if rank not in known and (status := worker.process.poll()) is not None:
                if status < 0:
                    worker.pipe.wait(LAST_WORDS_SECONDS)
                # One that was killed after it had left has done its work, and no other could take its place.
                self._order_of_death.append(Ended(rank, 0 if status < 0 and rank in self._left else status))


def read_tail(log: Path) -> str:
    """Return the end of a log file; nothing where a user has removed it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return file.read().decode(errors="replace").rstrip()
    except FileNotFoundError:
        return ""


def worker_allocator() -> str | None:
    """The shared library that worker processes take their memory from: tcmalloc where it is installed.

    glibc's own leaves holes between activations, so that a worker grows with the depth of its model, and it gives pages
    back that the next block asks for again (docs/decisions/0004).
    """
    return ctypes.util.find_library("tcmalloc_minimal")
