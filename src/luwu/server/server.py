"""The server of one host: lets workers join through a Unix socket, hands them the shared memory, watches them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import Any

from luwu.control.messages import PROTOCOL_VERSION, SOCKET_NAME, Message, error_message, receive, send, short_address
from luwu.core import native
from luwu.core.closing import close_after
from luwu.core.errors import ConfigError, LuwuError, ServerError
from luwu.core.forks import OfThisProcess, keep_from_children
from luwu.core.manifest import Manifest
from luwu.core.room import DISK_FULL_WAIT_SECONDS, LOOK_SECONDS, RoomWatch, SayRoom, log_room
from luwu.server.folders import open_server
from luwu.server.membership import Membership
from luwu.server.settings import NO_SNAPSHOTS, Snapshots
from luwu.store.folders import has_store, make_folder
from luwu.store.opening import lock_folder
from luwu.store.parts import refused
from luwu.store.run_record import Counts

Report = dict[str, Any]


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
        on_room: called when such a wait begins and ends, in a thread of the server.

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
        on_room: SayRoom = log_room,
    ) -> None:
        super().__init__()
        self._run_dir = Path(run_dir)
        self._folders = folders = [Path(folder) for folder in stores or [self._run_dir / "store"]]
        threads = optimizer_threads or len(os.sched_getaffinity(0))
        self._first = Counts()

        def open_core(manifest: Manifest) -> native.ShmServer:
            core = open_server(
                folders,
                manifest,
                memory_bytes,
                workers,
                threads,
                snapshots,
                read_only=read_only,
                disk_full_wait_seconds=disk_full_wait_seconds,
            )
            try:
                self._first = on_open(Counts.of(core.stats()))
            except BaseException:
                core.close()
                raise
            return core

        self._members: Membership[native.ShmServer] = Membership(workers, open_core)
        self._on_report = on_report or (lambda rank, report: None)
        self._lock = threading.Lock()
        self._closing = False
        make_folder(self._run_dir)
        self._run_lock = lock_folder(self._run_dir, "run folder")
        self.socket_path = self._run_dir / SOCKET_NAME
        self._listener = _listen(self.socket_path)
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()
        self._room_watch = RoomWatch(on_room)
        own = (
            threading.Thread(target=self._accept, name="luwu-accept", daemon=True),
            threading.Thread(target=self._watch_room, name="luwu-room", daemon=True),
        )
        self._threads = list(own)  # the workers' threads are added as soon as the first of these runs
        for thread in own:
            thread.start()

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

    def error(self) -> str | None:
        """Return the message of the error that the server failed with, or None."""
        error = self._members.error()
        return str(error) if error is not None else None

    def workers_lost(self) -> list[str]:
        """Return descriptions of the workers that ended without leaving, one line each."""
        return self._members.lost

    def wait_for_leaves(self, at_most_seconds: float) -> None:
        """Return when every worker that joined has left or ended, or the time is over."""
        self._members.wait_for_leaves(at_most_seconds)

    def wait_for_room(self) -> None:
        """Return when no answered step waits for room on its disk; Ctrl-C ends the wait."""
        while (stats := self.stats()).get("unwritten") and stats["waits_for_room"] is not None:
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Stop serving. The store stands at its last commit; workers that still wait get ServerError.

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
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # its worker may have closed it already
                    connection.shutdown(socket.SHUT_RD)
        for thread in self._threads:
            thread.join()
        try:
            self._members.close()
        finally:
            self._listener.close()
            with suppress(OSError):  # the next server of this folder removes it
                self.socket_path.unlink()
            self._run_lock.close()

    def _watch_room(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._room_watch.look(self._members.stats())

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            keep_from_children(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), name="luwu-worker", daemon=True)
            with self._lock:
                if self._closing:
                    connection.close()
                    return
                self._connections.add(connection)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        rank: int | None = None
        left = False
        try:
            while (received := receive(connection)) is not None:
                message, _ = received
                if message["type"] == "leave":
                    left = True
                    break
                if message["type"] == "report":
                    if rank is not None:
                        self._on_report(rank, message["report"])
                    continue
                try:
                    if message["type"] == "join":
                        rank = self._join(message)
                        send(connection, {"workers": self.workers})
                    else:
                        self._answer(connection, message, rank)
                except LuwuError as error:
                    send(connection, error_message(error))
                except MemoryError:
                    send(connection, error_message(ServerError("the server has no memory left; lower memory=")))
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            pass  # a connection that broke or speaks another language counts as ended, below
        finally:
            with self._lock:
                self._connections.discard(connection)
                connection.close()
            if rank is not None:
                self._members.leave(rank) if left else self._members.lose(rank)

    def _join(self, message: Message) -> int:
        if message["protocol"] != PROTOCOL_VERSION:
            raise ConfigError(
                f"the worker speaks protocol {message['protocol']}, the server {PROTOCOL_VERSION}; install one version"
            )
        rank = int(message["rank"])
        self._members.join(rank, int(message["workers"]))
        return rank

    def _answer(self, connection: socket.socket, message: Message, rank: int | None) -> None:
        if rank is None:
            raise ServerError("a worker must join before anything else")
        if message["type"] == "attach":
            fresh = self._members.attach(rank, Manifest.from_json(message["manifest"]))
            stats = self._members.stats()
            counts = {name: stats[name] for name in ("step", "attempts", "rolled_back", "loss_scale", "good_steps")}
            with self._members.core() as core:
                send(connection, {"fresh": fresh, "first": astuple(self._first), **counts}, list(core.files_of(rank)))
        elif message["type"] == "has_store":
            send(connection, {"has": has_store(self._folders, Manifest.from_json(message["manifest"]))})
        elif message["type"] == "initialised":
            self._members.let_in()
            send(connection, {})
        elif message["type"] == "segments":
            segments = [(int(end), int(group)) for end, group in message["segments"]]
            with self._members.core() as core:
                core.set_segments(int(message["block"]), segments)
            send(connection, {})
        elif message["type"] == "snapshot":
            with self._members.core() as core:
                send(connection, {"step": core.take_snapshot()})
        else:
            raise ServerError(f"unknown control message {message['type']!r}")


def _listen(path: Path) -> socket.socket:
    """Return a socket that listens at a path; raises StoreSpaceError, StorePermissionError or StoreError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    keep_from_children(listener)
    try:
        path.unlink(missing_ok=True)  # left by a server that was killed: the lock says nobody serves here
        with short_address(path) as address:
            listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise refused("make the socket", path, error) from error
    return listener
