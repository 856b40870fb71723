"""A Unix socket as the carrier of the control plane: calls come in frames, open files go beside the answers.

A thread answers each connection's calls in their order. docs/decisions/0017-control-service.md says why gRPC is not the
carrier here.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

from luwu.control import control_pb2 as pb
from luwu.control.frames import METHODS, decode, failure_of, receive, send, short_address
from luwu.core.errors import LuwuError, ServerError
from luwu.core.forks import keep_from_children
from luwu.server.local_service import LocalCaller, LocalService
from luwu.store.parts import refused


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
        self._closing = False
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def start(self, service: LocalService) -> None:
        """Take workers in, in threads."""
        accepting = threading.Thread(target=self._accept, args=(service,), name="luwu-accept", daemon=True)
        self._threads.append(accepting)  # before the workers' threads, which it adds as soon as it runs
        accepting.start()

    def stop(self) -> None:
        """Take no calls any more, and return when those under way have been answered."""
        with self._lock:
            self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):  # its worker may have closed it already
                    connection.shutdown(socket.SHUT_RD)
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Remove the socket."""
        self._listener.close()
        with suppress(OSError):  # the next server of this folder removes it
            self.path.unlink()

    def _accept(self, service: LocalService) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            keep_from_children(connection)
            thread = threading.Thread(target=self._serve, args=(connection, service), name="luwu-worker", daemon=True)
            with self._lock:
                if self._closing:
                    connection.close()
                    return
                self._connections.add(connection)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, service: LocalService) -> None:
        caller = LocalCaller()
        try:
            serve_calls(connection, service, caller)
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            pass  # a connection that broke or speaks another language counts as ended
        finally:
            with self._lock:
                self._connections.discard(connection)
                connection.close()
            service.ended(caller)


def serve_calls(connection: socket.socket, service: LocalService, caller: LocalCaller) -> None:
    """Answer calls until the worker leaves or the connection ends.

    Raises:
        OSError: the connection broke, or the other side speaks another language.
    """
    while not caller.left and (call := _next_call(connection)) is not None:
        caller.files = []
        with ExitStack() as caller.until_answered:
            answer = answer_call(call, service, caller)
            if not call.unanswered:
                send(connection, answer, caller.files)


def answer_call(call: pb.Call, service: LocalService, caller: LocalCaller) -> pb.Answer:
    """Call a method of the service; its errors travel in the answer. Raises OSError where the request is none."""
    try:
        method = METHODS.get(call.method)
        act = getattr(service, call.method, None) if method is not None else None
        if method is None or act is None:
            raise ServerError(f"control method: expected one for workers of this machine, found {call.method!r}")
        return pb.Answer(reply=act(decode(method.request, call.request), caller).SerializeToString())
    except LuwuError as error:
        return failure_of(error)
    except MemoryError:
        return failure_of(ServerError("the server has no memory left; lower memory="))


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
