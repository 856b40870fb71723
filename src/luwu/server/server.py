"""The server of one host: lets workers join through a Unix socket, hands them the shared memory, watches them."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from luwu import _native
from luwu.errors import ConfigError, LuwuError, ManifestMismatchError, ServerError, StoreLockedError
from luwu.fabric.messages import PROTOCOL_VERSION, SOCKET_NAME, Message, error_message, receive, send, short_address
from luwu.server.folders import make_folder, open_server
from luwu.store.manifest import Manifest, first_difference

Report = dict[str, Any]


class LocalServer:
    """Serves the workers of one run on this machine from a store in ``stores`` (default: the run folder's ``store``).

    Threads of its own accept workers and answer them; the data plane is native and never waits for Python.

    Args:
        run_dir: folder of the run; its socket lies here.
        stores: folders that the store is striped over.
        memory_bytes: budget for parameters, optimizer states and gradients in memory.
        workers: how many workers make a step.
        on_report: called with (rank, report) for everything a worker reports, in a thread of the server.
        optimizer_threads: threads of the update; default: as many as this process may use processors.

    Raises:
        StoreLockedError: another process serves this run folder.
        StorePermissionError, StoreSpaceError: the folder cannot be written to.
    """

    def __init__(
        self,
        run_dir: str | Path,
        stores: list[str] | list[Path] | None,
        memory_bytes: int,
        workers: int,
        on_report: Callable[[int, Report], None] | None = None,
        optimizer_threads: int | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers: expected at least 1, found {workers}")
        self._run_dir = Path(run_dir)
        self._folders = [Path(folder) for folder in stores or [self._run_dir / "store"]]
        self._memory_bytes = memory_bytes
        self._workers = workers
        self._on_report = on_report or (lambda rank, report: None)
        self._optimizer_threads = optimizer_threads or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # told when a worker's connection has ended
        self._core: _native.Server | None = None
        self._manifest: Manifest | None = None
        self._ready = threading.Event()  # the store holds first values, or something failed
        self._joined: set[int] = set()
        self._attached: set[int] = set()  # have used the data plane, which serves each rank once
        self._lost: list[str] = []
        self._closing = False
        make_folder(self._run_dir)
        self._run_lock = _lock_run(self._run_dir)
        self.socket_path = self._run_dir / SOCKET_NAME
        self._listener = _listen(self.socket_path)
        self._connections: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="luwu-accept", daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def workers(self) -> int:
        """Workers that make a step."""
        return self._workers

    @property
    def step(self) -> int:
        """Committed steps; 0 before the store is open."""
        return int(self.stats().get("step", 0))

    def stats(self) -> dict[str, Any]:
        """Counts since the start (bytes, elements, seconds) and the committed step; empty before the store is open."""
        core = self._core
        return core.stats() if core is not None else {}

    def error(self) -> str | None:
        """What the server failed with, if it did."""
        core = self._core
        return core.failure() if core is not None else None

    def workers_lost(self) -> list[str]:
        """One line for each worker that ended without leaving."""
        return list(self._lost)

    def wait_for_leaves(self, at_most_seconds: float) -> None:
        """Return when every worker that joined has left or ended, or the time is over."""
        with self._ended:
            self._ended.wait_for(lambda: not self._joined, at_most_seconds)

    def close(self) -> None:
        """Stop serving. The store stands at its last commit; workers that still wait get ServerError."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # its worker may have closed it already
                    connection.shutdown(socket.SHUT_RD)
        self._ready.set()
        for thread in self._threads:
            thread.join()
        self._core = None  # the native server ends with its last reference
        self._listener.close()
        self.socket_path.unlink(missing_ok=True)
        self._run_lock.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
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
                        send(connection, {"workers": self._workers})
                    else:
                        self._answer(connection, message, rank)
                except LuwuError as error:
                    send(connection, error_message(error))
                except MemoryError:
                    send(connection, error_message(ServerError("the server has no memory left; lower memory=")))
        except (OSError, ValueError, KeyError):
            pass  # a connection that broke or speaks another language counts as ended, below
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._joined.discard(-1 if rank is None else rank)
                connection.close()
                self._ended.notify_all()
            if rank is not None and not self._closing:
                self._leave(rank) if left else self._lose(rank)

    def _join(self, message: Message) -> int:
        if message["protocol"] != PROTOCOL_VERSION:
            raise ConfigError(
                f"the worker speaks protocol {message['protocol']}, the server {PROTOCOL_VERSION}; install one version"
            )
        rank, workers = int(message["rank"]), int(message["workers"])
        if workers != self._workers or not 0 <= rank < workers:
            raise ConfigError(
                f"worker {rank} of {workers} cannot join: this server was started for {self._workers} workers"
            )
        with self._lock:
            if rank in self._joined:
                raise ConfigError(f"worker {rank} has joined already; give every worker a rank of its own")
            if rank in self._attached:
                raise ConfigError(f"worker {rank} has left this server; start the server again to train on")
            self._joined.add(rank)
        return rank

    def _answer(self, connection: socket.socket, message: Message, rank: int | None) -> None:
        if rank is None:
            raise ServerError("a worker must join before anything else")
        if message["type"] == "attach":
            manifest = Manifest.from_json(message["manifest"])
            core = self._attach(manifest)
            if core.initialised:
                self._ready.set()
            elif rank != 0:  # rank 0 writes the first values
                self._ready.wait()
                if not core.initialised:
                    raise ServerError(self.error() or "the server ended before the first values were written")
            with self._lock:
                self._attached.add(rank)
            send(connection, {"fresh": not core.initialised, **self._counts(core)}, list(core.files_of(rank)))
        elif message["type"] == "initialised":
            self._ready.set()
            send(connection, {})
        elif message["type"] == "segments":
            segments = [(int(end), int(group)) for end, group in message["segments"]]
            self._require_core().set_segments(int(message["block"]), segments)
            send(connection, {})
        else:
            raise ServerError(f"unknown control message {message['type']!r}")

    def _attach(self, manifest: Manifest) -> _native.Server:
        """The first worker's manifest opens the store; the others' must be the same."""
        with self._lock:
            if self._core is None:
                self._core, _ = open_server(
                    self._folders, manifest, self._memory_bytes, self._workers, self._optimizer_threads
                )
                self._manifest = manifest
            elif self._manifest is not None:
                difference = first_difference(manifest, self._manifest)
                if difference is not None:
                    raise ManifestMismatchError(
                        f"this worker's model is not that of the workers before it: {difference}; run one script on all"
                    )
            return self._core

    def _require_core(self) -> _native.Server:
        if self._core is None:
            raise ServerError("the store is not open yet: attach first")
        return self._core

    @staticmethod
    def _counts(core: _native.Server) -> dict[str, int]:
        stats = core.stats()
        return {name: int(stats[name]) for name in ("step", "attempts", "rolled_back")}

    def _leave(self, rank: int) -> None:
        if self._core is not None:
            self._core.worker_left(rank)

    def _lose(self, rank: int) -> None:
        message = (
            f"worker {rank} ended without leaving; the run stands at step {self.step}: run again to resume from there"
        )
        self._lost.append(message)
        if self._core is not None:
            self._core.worker_lost(message)
        self._ready.set()


def _lock_run(run_dir: Path) -> Any:
    file = (run_dir / "luwu.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise StoreLockedError(
            f"the run folder {run_dir} is in use by process {owner}; stop that process or use another folder"
        ) from error
    # Who holds it is for the message above only: on a full disk the run goes on without it.
    with suppress(OSError):
        os.truncate(file.fileno(), 0)
        os.write(file.fileno(), str(os.getpid()).encode())
    return file


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # left by a server that was killed: the lock says nobody serves here
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_address(path) as address:
        listener.bind(address)
    listener.listen()
    return listener
