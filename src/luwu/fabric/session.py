"""A worker's connection to a server: `open` embeds the server in this process, `join` finds one on this host."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from luwu import _native
from luwu.config import parse_size
from luwu.errors import ConfigError, ServerError
from luwu.fabric.messages import PROTOCOL_VERSION, SOCKET_NAME, Message, raise_if_error, receive, send, short_address
from luwu.server.server import LocalServer
from luwu.store.manifest import Manifest

DEFAULT_MEMORY = "8GiB"
_JOIN_SECONDS = 60.0
_RETRY_SECONDS = 0.05
_LEAVE_SECONDS = 60.0


class Session:
    """One worker's membership in a job. Use it as a context manager, or `close` it at the end.

    Attributes:
        rank: this worker, from 0.
        workers: workers that make a step together.
        step: committed optimizer steps; on resume, where training goes on.
        attempts: steps that were begun and ended, rolled-back ones included: counts the batches that were used.
        rolled_back: attempts that were rolled back because a gradient was not finite.
        endpoint: the data plane, there once `attach` returned.
    """

    def __init__(self, connection: socket.socket, rank: int, workers: int, server: LocalServer | None = None) -> None:
        self.rank = rank
        self.workers = workers
        self.step = 0
        self.attempts = 0
        self.rolled_back = 0
        self._connection = connection
        self._server = server
        self._endpoint: _native.Endpoint | None = None
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(failed=kind is not None)

    @property
    def endpoint(self) -> _native.Endpoint:
        """The worker's end of the fabric; raises ServerError before `attach`."""
        if self._endpoint is None:
            raise ServerError("the session has no model yet: call luwu.parallelize first")
        return self._endpoint

    @property
    def server(self) -> LocalServer | None:
        """The server that this process embeds, if it does."""
        return self._server

    def attach(self, manifest: Manifest, *, shared_window: bool = False) -> bool:
        """Open or create the server's store for this model.

        Args:
            manifest: the model's blocks and parameters.
            shared_window: map parameters so that a device can copy from them (CUDA).

        Returns:
            True if the store is fresh: this worker (rank 0) then writes the first values and calls `initialised`.

        Raises:
            ManifestMismatchError: the store holds another model. Others: see `luwu.errors`.
        """
        if self._endpoint is not None:
            raise ConfigError("this session has a model already; open another session for another model")
        answer, files = self._ask({"type": "attach", "manifest": manifest.to_json()})
        try:
            self._endpoint = _native.Endpoint(files, self.rank, self._connection.fileno(), shared_window)
        finally:
            for file in files:
                os.close(file)
        self.step, self.attempts, self.rolled_back = answer["step"], answer["attempts"], answer["rolled_back"]
        return bool(answer["fresh"])

    def initialised(self) -> None:
        """Let the other workers in: the store's first values are committed."""
        self._ask({"type": "initialised"})

    def set_segments(self, block: int, segments: Sequence[tuple[int, int]]) -> None:
        """Set the optimizer group of each part of a block: ascending (end element, group). Before the first step."""
        self._ask({"type": "segments", "block": block, "segments": [list(segment) for segment in segments]})

    def report(self, report: dict[str, Any]) -> None:
        """Send something that JSON can hold to whoever started the server; nothing comes back."""
        try:
            send(self._connection, {"type": "report", "report": report})
        except OSError as error:
            raise ServerError("the server ended; run again to resume at the last committed step") from error

    def count_step(self, committed: bool) -> None:
        """Keep `step`, `attempts` and `rolled_back` after a commit was answered."""
        self.attempts += 1
        if committed:
            self.step += 1
        else:
            self.rolled_back += 1

    def close(self) -> None:
        """Leave the job; a server that this process embeds stops, up to a minute later, when the others have left.

        The store stands at its last commit. Leaving the ``with`` block by an exception instead counts as a worker's
        failure: the others get WorkerLostError (or ServerError, if the server was in this process) and do not wait.
        """
        self._end(failed=False)

    def _end(self, *, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if not failed:
                with suppress(OSError):  # the server may be gone already
                    send(self._connection, {"type": "leave"})
                if self._server is not None:
                    self._server.wait_for_leaves(_LEAVE_SECONDS)
        finally:
            if self._server is not None:
                self._server.close()
            self._connection.close()

    def _ask(self, message: Message) -> tuple[Message, list[int]]:
        try:
            send(self._connection, message)
            received = receive(self._connection)
        except OSError as error:
            raise ServerError(f"the connection to the server broke: {error}") from error
        if received is None:
            raise ServerError("the server ended; run again to resume at the last committed step")
        return raise_if_error(received[0]), received[1]


def open(
    path: str | Path,
    *,
    stores: Sequence[str | Path] | None = None,
    memory: str | int = DEFAULT_MEMORY,
    rank: int | None = None,
    workers: int | None = None,
) -> Session:
    """Open a run in this process, which is then its own server, like SQLite.

    Under torchrun (or with ``rank`` and ``workers``) the processes of this host share one run: rank 0 embeds the
    server, the others join it through the run folder.

    Args:
        path: folder of the run; made where missing.
        stores: folders to stripe the store over; default: ``path/store``.
        memory: the server's budget for parameters, optimizer states and gradients, such as ``8GiB``.
        rank, workers: this process among the run's; default: RANK and WORLD_SIZE of the environment, else one.

    Raises:
        StoreLockedError: another process serves this folder. ConfigError: settings that cannot work.
    """
    rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    workers = int(os.environ.get("WORLD_SIZE", 1)) if workers is None else workers
    if not 0 <= rank < workers:
        raise ConfigError(f"rank: expected 0 to {workers - 1} for {workers} workers, found {rank}")
    run_dir = Path(path)
    if rank > 0:
        return join(run_dir / SOCKET_NAME, rank, workers)
    folders = [Path(folder) for folder in stores] if stores else None
    server = LocalServer(run_dir, folders, parse_size(memory), workers)
    try:
        return join(server.socket_path, rank, workers, server=server)
    except BaseException:
        server.close()
        raise


def join(socket_path: str | Path, rank: int, workers: int, *, server: LocalServer | None = None) -> Session:
    """Join the server that listens at a socket of this host, waiting up to a minute for it to be there.

    Raises:
        ServerError: nobody listens there. ConfigError: the server expects other workers.
    """
    path = Path(socket_path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + _JOIN_SECONDS
    while True:
        try:
            with short_address(path) as address:
                connection.connect(address)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                connection.close()
                raise ServerError(
                    f"no server listens at {path}: {error.strerror}; start it, or check the path"
                ) from error
            time.sleep(_RETRY_SECONDS)
    session = Session(connection, rank, workers, server)
    try:
        session._ask({"type": "join", "protocol": PROTOCOL_VERSION, "rank": rank, "workers": workers})
    except BaseException:
        connection.close()
        raise
    return session
