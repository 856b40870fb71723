"""A Unix socket as the carrier of the control plane: calls come in frames, open files go beside the answers.

A thread answers each connection's calls in their order. docs/decisions/0017-control-service.md says why gRPC is not the
carrier here.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from luwu.control import control_pb2 as pb
from luwu.control.frames import METHODS, decode, failure_of, receive, send, short_address
from luwu.control.timeouts import TIMEOUTS
from luwu.core.errors import ServerError
from luwu.core.forks import keep_from_children
from luwu.server.local_service import LocalCaller, LocalService
from luwu.server.service import error_to_tell
from luwu.store.parts import refused

ANSWER_SECONDS = TIMEOUTS.close_seconds
"""Longest time that a server which stops waits for its answers to be sent and read."""

_RETRY_SECONDS = TIMEOUTS.retry_seconds  # pause after a connection that this process had no room for
_LONGEST_NAME_CHARACTERS = 100

log = logging.getLogger(__name__)


class SocketCarrier:
    """Listens at a path, and passes calls on to a service. Forked children get none of its sockets.

    Args:
        path: path of the socket; a socket that a killed server left there is removed.

    Raises:
        StoreSpaceError, StorePermissionError, StoreError: no socket can be made there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = _listen(path)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._accepting: threading.Thread | None = None
        self._serving: dict[socket.socket, threading.Thread] = {}

    def start(self, service: LocalService) -> None:
        """Take workers in, in threads."""
        self._accepting = threading.Thread(target=self._accept, args=(service,), name="luwu-accept", daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        """Take no calls any more, and return when those under way have ended.

        Their answers are sent, except to a worker that does not read its own within ``ANSWER_SECONDS``.
        """
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        if self._accepting is not None:
            self._accepting.join()
        with self._lock:
            threads = list(self._serving.values())
        self._shut_down(socket.SHUT_RD)
        deadline = time.monotonic() + ANSWER_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._shut_down(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Remove the socket."""
        self._listener.close()
        with suppress(OSError):  # the next server of this folder removes it
            self.path.unlink()

    def _accept(self, service: LocalService) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():  # no descriptors are left, for example: there may be some later
                    log.warning("a worker's connection waits, because it could not be taken: %s", error)
                    self._closing.wait(_RETRY_SECONDS)
                continue
            keep_from_children(connection)
            thread = threading.Thread(target=self._serve, args=(connection, service), name="luwu-worker", daemon=True)
            with self._lock:
                self._serving[connection] = thread
                try:
                    thread.start()
                except RuntimeError as error:
                    log.warning("a worker's connection is refused: %s", error)
                    del self._serving[connection]
                    connection.close()

    def _serve(self, connection: socket.socket, service: LocalService) -> None:
        caller = LocalCaller()
        try:
            serve_calls(connection, service, caller)
        except OSError:
            pass  # a broken connection, or one of another protocol, counts as ended
        finally:
            with self._lock:
                connection.close()
            service.ended(caller)
            with self._lock:
                del self._serving[connection]

    def _shut_down(self, how: int) -> None:
        with self._lock:
            for connection in self._serving:
                with suppress(OSError):  # its worker may have closed it already
                    connection.shutdown(how)


def serve_calls(connection: socket.socket, service: LocalService, caller: LocalCaller) -> None:
    """Answer calls until the worker leaves or the connection ends.

    Raises:
        OSError: the connection broke, or the other side does not use this protocol.
    """
    while not caller.left and (call := _next_call(connection)) is not None:
        caller.files = []
        with ExitStack() as caller.until_answered:
            answer = answer_call(call, service, caller)
            if not call.unanswered:
                send(connection, answer, caller.files)


def answer_call(call: pb.Call, service: LocalService, caller: LocalCaller) -> pb.Answer:
    """Call a method of the service; its errors travel in the answer. Raises OSError where the request is none."""
    method = METHODS.get(call.method)
    act = getattr(service, call.method, None) if method is not None else None
    if method is None or act is None:
        found = call.method[:_LONGEST_NAME_CHARACTERS]
        return failure_of(ServerError(f"control method: expected one for workers of this machine, found {found!r}"))
    request = decode(method.request, call.request)
    try:
        return pb.Answer(reply=act(request, caller).SerializeToString())
    except Exception as error:
        return failure_of(error_to_tell(method.name, error))


def _next_call(connection: socket.socket) -> pb.Call | None:
    """Receive a call; None at the end. Files that came with it are of no use."""
    received = receive(connection, pb.Call)
    if received is None:
        return None
    call, files = received
    for file in files:
        os.close(file)
    return call


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
