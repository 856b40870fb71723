"""The server of one host: lets workers join through a Unix socket, hands them the shared memory, watches them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from luwu.control.frames import SOCKET_NAME
from luwu.control.timeouts import TIMEOUTS
from luwu.core import native
from luwu.core.aggregation import MEAN, trims_for
from luwu.core.closing import close_after
from luwu.core.durability import EACH_STEP, CommitPoints
from luwu.core.forks import OfThisProcess
from luwu.core.manifest import Manifest
from luwu.core.room import DISK_FULL_WAIT_SECONDS, LOOK_SECONDS, RoomWait, RoomWatch, SayRoom, log_room
from luwu.server.description import behind_of, figures_of
from luwu.server.folders import open_server
from luwu.server.laggards import NO_PATIENCE, Patience, look_for_laggards, overdue, why_overdue
from luwu.server.local_service import LocalService
from luwu.server.membership import Membership, look_for_missing
from luwu.server.progress import LaggardWatch
from luwu.server.socket_carrier import SocketCarrier
from luwu.store.folders import make_folder
from luwu.store.opening import lock_folder
from luwu.store.run_record import Counts
from luwu.store.settings import NO_SNAPSHOTS, Snapshots

Report = dict[str, Any]

log = logging.getLogger(__name__)


class LocalServer(OfThisProcess):
    """Server of one run on this machine, with a store in ``stores`` (default: the run folder's ``store``).

    Threads of its own accept workers and answer them; the data plane is native and never waits for Python.

    Args:
        run_dir: folder of the run; its socket lies here.
        stores: folders that the store is striped over.
        memory_bytes: budget for parameters, optimizer states and gradients in memory.
        workers: number of workers that make a step.
        on_report: called with (rank, report) for everything a worker reports, in a thread of the server.
        optimizer_threads: threads of the update; default: as many as this process may use processors.
        snapshots: the snapshots that the server takes during training.
        on_open: called with the store's counts once it is open, before any worker goes on; returns the counts at which
            the run began. An exception from it closes the store.
        read_only: the store, which may be a snapshot, is only read; other processes may read it, too.
        disk_full_wait_seconds: the longest time that a step waits for room on a full disk; 0: the run fails at once.
        commit_points: the steps that are made durable.
        aggregate: how workers' gradients become one, see `luwu.core.aggregation`.
        on_room: called when such a wait begins and ends, in a thread of the server.
        on_slow: called with a sentence when workers wait for one that makes no progress or is lost, and when it or
            another goes on.
        patience: its waits for workers that are lost or make no progress.
        gives_up: tells whether `close` is to wait no longer for room on a full disk.

    Raises:
        StoreLockedError: another process serves this run folder.
        StorePermissionError, StoreSpaceError: the folder cannot be written to.
    """

    _what = "this server"

    def __init__(
        self,
        run_dir: str | Path,
        stores: list[str] | list[Path] | None,
        memory_bytes: int,
        workers: int,
        on_report: Callable[[int, Report], None] | None = None,
        optimizer_threads: int | None = None,
        snapshots: Snapshots = NO_SNAPSHOTS,
        *,
        on_open: Callable[[Counts], Counts] = lambda counts: Counts(),
        read_only: bool = False,
        disk_full_wait_seconds: float = DISK_FULL_WAIT_SECONDS,
        commit_points: CommitPoints = EACH_STEP,
        aggregate: str = MEAN,
        on_room: SayRoom = log_room,
        on_slow: Callable[[str], None] = log.warning,
        patience: Patience = NO_PATIENCE,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._run_dir = Path(run_dir)
        folders = [Path(folder) for folder in stores or [self._run_dir / "store"]]
        threads = optimizer_threads or len(os.sched_getaffinity(0))
        self._first = Counts()
        trims = trims_for(aggregate, workers)

        def open_core(manifest: Manifest) -> native.ShmServer:
            core = open_server(
                folders, manifest, memory_bytes, workers, threads, snapshots, read_only=read_only,
                disk_full_wait_seconds=disk_full_wait_seconds, commit_points=commit_points,
                trims=trims,
            )  # fmt: skip
            try:
                self._first = on_open(Counts.of(core.stats()))
            except BaseException:
                core.close()
                raise
            return core

        self._members: Membership[native.ShmServer] = Membership(
            workers, open_core, worker_return_seconds=patience.return_seconds, say=on_slow,
            another_comes=patience.another_comes,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._closing = False
        make_folder(self._run_dir)
        self._run_lock = lock_folder(self._run_dir, "run folder")
        self.socket_path = self._run_dir / SOCKET_NAME
        self._carrier = SocketCarrier(self.socket_path)
        self._closed = threading.Event()
        self._room_watch = RoomWatch(on_room, gives_up)
        self._laggard_watch = LaggardWatch(TIMEOUTS, patience.deadline_seconds)
        self._on_slow = on_slow
        self._patience = patience
        self._overdue: set[int] = set()
        self._watching = threading.Thread(target=self._watch, name="luwu-looks", daemon=True)
        self._watching.start()
        report = on_report or (lambda rank, report: None)
        self._carrier.start(LocalService(self._members, folders, lambda: self._first, report, aggregate))

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, self.close)

    @property
    def workers(self) -> int:
        """Workers that make a step."""
        return self._members.workers

    @property
    def step(self) -> int:
        """Committed steps; 0 before the store is open."""
        return self._members.step

    def stats(self) -> dict[str, Any]:
        """Counts since the start (bytes, elements, seconds) and the committed step; empty before the store is open."""
        return self._members.stats()

    def figures(self) -> dict[str, Any]:
        """Return the stats as `luwu.control.figures.SERVER` reads them."""
        return figures_of(self._members)

    def behind(self) -> dict[str, float]:
        """Return the seconds that others have waited for each worker, by rank."""
        return behind_of(self._members)

    def note_wait(self, wait: RoomWait | None) -> None:
        """Note that a full disk of the run folder makes this process's owner wait, or with None that it goes on."""
        self._members.launcher_wait = wait

    def error(self) -> str | None:
        """Return the message of the error that the server failed with, or None."""
        error = self._members.error()
        return str(error) if error is not None else None

    def workers_lost(self) -> list[str]:
        """Return descriptions of the workers that ended without leaving, one line each."""
        return list(self._members.lost)

    def wait_for_leaves(self, at_most_seconds: float) -> None:
        """Return when every worker that joined has left or ended, or the time is over."""
        self._members.wait_for_leaves(at_most_seconds)

    def close(self) -> None:
        """Stop serving. The store stands at the last step that was answered; workers that still wait get ServerError.

        Where a disk is full it waits for room, as a step does; Ctrl-C, or ``gives_up``, ends that wait.
        In a process that was forked from the server's it does nothing.

        Raises:
            StoreError, StoreSpaceError: a step that was answered could not be written; the server has stopped.
        """
        if self.forked:
            return
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._closed.set()
        self._members.stop_waiting()
        self._carrier.stop()
        self._watching.join()
        try:
            self._members.close(goes_on=self._room_watch.goes_on)
        finally:
            self._carrier.close()
            self._run_lock.close()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._room_watch.look(self._members.stats())
            look_for_missing(self._members)
            for text in look_for_laggards(self._members, self._laggard_watch):
                self._on_slow(text)
            self._look_for_overdue()

    def _look_for_overdue(self) -> None:
        """Tell once of each worker whose time is over, until it goes on or its session ends."""
        found = {laggard.rank: laggard for laggard in overdue(self._members, self._patience.deadline_seconds)}
        for rank in found.keys() - self._overdue:
            self._patience.on_overdue(
                rank, f"worker {rank} {why_overdue(found[rank], self._patience.deadline_seconds)}"
            )
        self._overdue = set(found)
