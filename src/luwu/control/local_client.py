"""A worker's end of the control plane on its server's machine: the Unix socket in the run folder."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from luwu.control import control_pb2 as pb
from luwu.control.frames import METHODS, receive, reply_of, send, short_address
from luwu.control.rpc import PROTOCOL_VERSION, check_version
from luwu.control.waiting import saying
from luwu.core.errors import ServerError
from luwu.core.forks import OfThisProcess, keep_from_children

CONNECT_SECONDS = 60.0
_RETRY_SECONDS = 0.05
_ENDED = "the server ended; run again to resume at the last committed step"

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)


class _WholeFrames:
    """A direction of a connection: context manager around each frame. Raises OSError after a frame that was cut off."""

    def __init__(self) -> None:
        self._within = False

    def __enter__(self) -> None:
        if self._within:
            raise OSError("an earlier call was interrupted within a message")
        self._within = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._within = kind is not None


class LocalClient(OfThisProcess):
    """Client of one session at a Unix socket. The connection is the session: its end is the session's.

    Calls may come from any thread; each waits for the one before it.

    Args:
        path: the server's socket.
        connect_seconds: the longest wait for it to be there; default: a minute.
        answer_seconds: the longest wait for an answer, and for a place in the queue of those who want to be taken in;
            None: until the server ends, and as long as ``connect_seconds``.

    Raises:
        ServerError: nobody listens there, or whoever does takes nobody in.
    """

    _what = "this session"

    def __init__(self, path: Path, connect_seconds: float | None = None, answer_seconds: float | None = None) -> None:
        super().__init__()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        keep_from_children(self._connection)
        self._calling = threading.Lock()
        self._sending = threading.Lock()
        self._sent, self._received = _WholeFrames(), _WholeFrames()
        self._answer_seconds = answer_seconds
        self._owed = 0  # answers to calls that Ctrl-C has interrupted: they come first
        seconds = CONNECT_SECONDS if connect_seconds is None else connect_seconds
        try:
            with saying(log, f"a server at {path}", max(seconds, answer_seconds or 0.0)):
                self._reach(path, seconds)
        except BaseException:
            self._connection.close()
            raise

    def join(self, rank: int, workers: int) -> None:
        """Join as one of the server's workers. Raises ConfigError where it does not want this one."""
        hello = self.call("Hello", pb.HelloRequest(protocol_version=PROTOCOL_VERSION))
        check_version(hello.protocol_version)
        self.call("JoinWorker", pb.JoinWorkerRequest(rank=rank, workers=workers))

    def call(self, method: str, request: Any) -> Any:
        """Call a method of control.proto and return its reply; raises the server's error."""
        return self.call_with_files(method, request, lambda reply, files: reply)

    def call_with_files(self, method: str, request: Any, take: Callable[[Any, list[int]], ResultT]) -> ResultT:
        """Call a method whose answer may bring open files; ``take`` gets the reply and them. They close after it."""
        self.require_process()
        call = pb.Call(method=method, request=request.SerializeToString())
        try:
            with self._calling:
                received = self._exchange(call)
        except OSError as error:
            raise ServerError(f"the connection to the server broke: {error}") from error
        if received is None:
            raise ServerError(_ENDED)
        answer, files = received
        try:
            return take(self._reply(answer, method), files)
        finally:
            for file in files:
                os.close(file)

    def post(self, method: str, request: Any) -> None:
        """Call a method and wait for nothing. Raises ServerError if the server has ended."""
        self.require_process()
        try:
            with self._sending, self._sent:
                send(self._connection, pb.Call(method=method, request=request.SerializeToString(), unanswered=True))
        except OSError as error:
            raise ServerError(_ENDED) from error

    def fileno(self) -> int:
        """Return the connection's descriptor, whose other end closes when the server ends."""
        return self._connection.fileno()

    def close(self) -> None:
        """End the connection. In a forked child it does nothing."""
        if not self.forked:
            self._connection.close()

    def _exchange(self, call: pb.Call) -> tuple[pb.Answer, list[int]] | None:
        with self._sending, self._sent:
            send(self._connection, call)
            self._owed += 1
        answered = select.poll()
        answered.register(self._connection, select.POLLIN)
        while True:
            limit = None if self._answer_seconds is None else 1000 * self._answer_seconds
            if not answered.poll(limit):  # Ctrl-C ends this wait between two frames
                raise ServerError(
                    f"the server did not answer within {self._answer_seconds:g} s: its process is stopped or hangs"
                )
            with self._received:
                received = receive(self._connection, pb.Answer)
                self._owed -= 1
            if received is None or not self._owed:
                return received
            for file in received[1]:
                os.close(file)

    @staticmethod
    def _reply(answer: pb.Answer, method: str) -> Any:
        try:
            return reply_of(answer, METHODS[method])
        except OSError as error:
            raise ServerError(f"the connection to the server broke: {error}") from error

    def _reach(self, path: Path, seconds: float) -> None:
        began = time.monotonic()
        self._connection.setblocking(False)  # a server that is stopped takes nobody in, and its queue may be full
        while True:
            try:
                with short_address(path) as address:
                    self._connection.connect(address)
                self._connection.setblocking(True)
                return
            except OSError as error:
                full = isinstance(error, BlockingIOError)
                limit = max(seconds, self._answer_seconds or 0.0) if full else seconds
                if time.monotonic() - began > limit:
                    raise ServerError(
                        f"the server at {path} took nobody in within {limit:g} s: its process is stopped or hangs"
                        if full
                        else f"no server listens at {path}: {error.strerror}; start it, or check the path"
                    ) from error
                time.sleep(_RETRY_SECONDS)
