"""A participant's end of the control plane: reaching the server, proving the key, calls, and the watch."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import grpc

from luwu.control import control_pb2 as pb
from luwu.control import control_pb2_grpc
from luwu.control.address import parse_url
from luwu.control.credentials import Credentials, make_nonce
from luwu.control.probing import Answer, probe
from luwu.control.rpc import PROTOCOL_VERSION, SESSION_METADATA, channel_options, check_version, error_from
from luwu.control.timeouts import Timeouts
from luwu.control.waiting import saying
from luwu.core.errors import AuthenticationError, LuwuError, ServerError, error_named
from luwu.core.forks import OfThisProcess, keep_connections_from_children

log = logging.getLogger(__name__)

REFUSALS = 3
"""Answers unlike a server's, for `refused_seconds`, after which a port is not ours. A silent port may be."""

ENDED = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
"""Status codes of calls whose server has ended."""


def open_channel(url: str, credentials: Credentials, timeouts: Timeouts) -> grpc.Channel:
    """Return a channel to the server at ``luwu://HOST:PORT``; it connects when it is first used. Raises ConfigError."""
    target, options = str(parse_url(url)), channel_options(timeouts)
    if credentials.tls is None:
        return grpc.insecure_channel(target, options)
    certificate, key, authority = credentials.tls.read()
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(authority, key, certificate), options)


class ControlClient(OfThisProcess):
    """Client of one session on a server's control plane. Calls may come from any thread.

    Args:
        url: ``luwu://HOST:PORT``.
        credentials: credentials of this side.
        timeouts: timeouts of the network.
        on_event: called with each event of the watch, in a thread of its own.
        on_end: called with the error that the session ended with, unless it was closed.
    """

    _what = "this session"

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        timeouts: Timeouts,
        on_event: Callable[[pb.Event], None],
        on_end: Callable[[LuwuError], None],
    ) -> None:
        super().__init__()
        self.url = url
        self._credentials = credentials
        self._timeouts = timeouts
        self._on_event = on_event
        self._on_end = on_end
        self._channel = open_channel(url, credentials, timeouts)
        self._stub = control_pb2_grpc.ControlStub(self._channel)
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._lock = threading.Lock()
        self._error: LuwuError | None = None
        self._closed = False
        self._given_up = threading.Event()
        self._watching = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="luwu-watch", daemon=True)

    def join(self, asked: str, join: Callable[[Any, bytes, bytes, float], pb.JoinReply]) -> str:
        """Prove the key, join and watch.

        Args:
            asked: text that the proof covers, see control/credentials.py.
            join: makes the call from the stub, the server's nonce, the proof, and how long it may take in seconds.

        Returns:
            The server's transport.

        Raises:
            ServerError: nobody answered in time. AuthenticationError: the keys or certificates do not fit.
            ConfigError: the server does not want this participant. Others: see `luwu.errors`.
        """
        address = parse_url(self.url)
        keep_connections_from_children(address.host, address.port)
        own = make_nonce()
        with saying(log, f"a server at {self.url}, which does not answer yet,", self._timeouts.connect_seconds):
            hello = self._hello(own)
        proof = self._credentials.prove_participant(own, hello.nonce, asked)
        seconds = self._timeouts.rejoin_seconds + self._timeouts.answer_seconds
        try:
            with saying(log, f"the server at {self.url}, which is not ready for another run yet,", seconds):
                reply = join(self._stub, hello.nonce, proof, seconds)
        except grpc.RpcError as error:
            raise self._translated(error, "joining") from None
        expected = self._credentials.prove_server(own, hello.nonce, asked)
        if expected and reply.proof != expected:
            raise AuthenticationError(f"the server at {self.url} does not know the job key; check the address")
        self._metadata = ((SESSION_METADATA, reply.session.hex()),)
        self._thread.start()
        seconds = self._timeouts.answer_seconds
        with saying(log, f"the server at {self.url} to let this participant watch its run", seconds):
            watching = self._watching.wait(seconds)
        if not watching:
            raise self.error() or ServerError(f"the server at {self.url} did not let this participant watch; run again")
        if self._error is not None:
            raise self._error
        return str(reply.transport)

    def error(self) -> LuwuError | None:
        """Error that the session ended with, or None."""
        return self._error

    def call(self, method: str, request: Any, seconds: float | None = None, *, patient: bool = False) -> Any:
        """Call a method and return its answer.

        Args:
            method: method of control.proto.
            request: its message.
            seconds: timeout of the call; default: ``answer_seconds``.
            patient: it waits for other workers, so only the session's end ends it.
        """
        return self.finish(self.start(method, request, seconds, patient=patient))

    def start(self, method: str, request: Any, seconds: float | None = None, *, patient: bool = False) -> grpc.Future:
        """Begin a call; `finish` waits for its answer."""
        self.require_process()
        if self._error is not None:
            raise self._again(self._error)
        limit = None if patient else seconds or self._timeouts.answer_seconds
        return getattr(self._stub, method).future(request, timeout=limit, metadata=self._metadata)

    def finish(self, call: grpc.Future) -> Any:
        """Wait for a call's answer; Ctrl-C is seen. Raises the server's error, or the error that ended the session."""
        try:
            return self._wait(call)
        except grpc.FutureCancelledError:
            raise self._again(self._error or ServerError("the session was closed during a call")) from None
        except grpc.RpcError as error:
            raise self._translated(error, "waiting for an answer") from None

    @property
    def met(self) -> bool:
        """True once the server has taken this participant in."""
        return bool(self._metadata)

    def give_up(self) -> None:
        """Let a join that has not reached a server end at once."""
        self._given_up.set()

    def close(self, *, leave: bool, failure: str = "") -> None:
        """End the session. Without leaving first it counts as a loss. In a forked child it does nothing.

        Args:
            leave: tell the server. failure: why this participant cannot go on; then it counts as a loss nevertheless.
        """
        if self.forked:
            return
        with self._lock:
            self._closed = True  # later messages of the watch are no news
        if leave and self._error is None and self._metadata:
            with suppress(LuwuError):  # the server may be gone already
                self.call("Leave", pb.LeaveRequest(failure=failure), self._timeouts.leave_seconds)
        self._channel.close()
        if self._thread.ident is not None:
            with saying(log, f"the connection to the server at {self.url} to end", self._timeouts.leave_seconds):
                self._thread.join(self._timeouts.leave_seconds)

    def _wait(self, call: grpc.Future) -> Any:
        """Wait for a call's answer. A call without a timeout waits for other workers too, and its caller says so."""
        look = self._timeouts.signal_check_seconds
        with suppress(grpc.FutureTimeoutError):
            return call.result(timeout=look)  # most calls end here, and need no timer's thread
        seconds = call.time_remaining()
        with nullcontext() if seconds is None else saying(log, f"the server at {self.url} to answer", round(seconds)):
            while True:
                with suppress(grpc.FutureTimeoutError):
                    return call.result(timeout=look)

    def _hello(self, nonce: bytes) -> pb.HelloReply:
        request = pb.HelloRequest(protocol_version=PROTOCOL_VERSION, nonce=nonce)
        deadline = time.monotonic() + self._timeouts.connect_seconds
        refusals, refused_at, found = 0, 0.0, Answer.SILENT
        while True:
            remaining = max(0.001, deadline - time.monotonic())
            try:
                reply = self._stub.Hello(request, timeout=min(remaining, self._timeouts.answer_seconds))
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise self._translated(error, "saying hello") from None
                answer = self._probe()
                found = answer if answer in (Answer.CLOSED, Answer.REFUSED) else found
                if answer is Answer.OTHER:
                    refusals, refused_at = refusals + 1, refused_at or time.monotonic()
                elif answer is not Answer.SILENT:
                    refusals, refused_at = 0, 0.0
                if refusals >= REFUSALS and time.monotonic() - refused_at >= self._timeouts.refused_seconds:
                    raise self._misunderstood(error) from None
                if self._given_up.is_set() or time.monotonic() + self._timeouts.retry_seconds >= deadline:
                    raise self._unanswered(found, error) from None
                if answer is Answer.SERVER:
                    self._open_channel_anew()
                self._given_up.wait(self._timeouts.retry_seconds)
                continue
            check_version(reply.protocol_version, f" at {self.url}")
            return reply

    def _open_channel_anew(self) -> None:
        """Replace the channel. After a failure gRPC connects again only while a call waits, and ours fail at once."""
        with self._lock:
            if not self._closed:
                self._channel.close()
                self._channel = open_channel(self.url, self._credentials, self._timeouts)
                self._stub = control_pb2_grpc.ControlStub(self._channel)

    def _probe(self) -> Answer:
        return probe(parse_url(self.url), self._timeouts.retry_seconds, self._credentials.tls)

    def _unanswered(self, found: Answer, error: grpc.RpcError) -> ServerError:
        """Make the error of a wait that is over, by the last connection that was closed or refused."""
        within = f"no server answered at {self.url} within {self._timeouts.connect_seconds:g} s"
        if found is Answer.CLOSED:
            return ServerError(
                f"{within} (connections were closed without an answer): either too many connections come from this "
                "host's address (over IPv6, from its /64), so end who opens them; or another program listens there, "
                "so check the address"
            )
        refused = found is Answer.REFUSED
        why = "the connection was refused: no server listens there" if refused else _reason(error)
        return ServerError(f"{within} ({why}); start it, or check the address and what lies between")

    def _misunderstood(self, error: grpc.RpcError) -> LuwuError:
        reason = _reason(error)
        if self._credentials.tls is not None:
            return AuthenticationError(
                f"TLS with the server at {self.url} failed ({reason}); use certificates that the same authority "
                "signed on both sides, and on the server one that names its host"
            )
        return AuthenticationError(
            f"{self.url} takes connections but does not answer as a luwu server without TLS does ({reason}); "
            "check the address, or name certificates with tls=, --tls-cert or LUWU_TLS_CERT"
        )

    def _watch(self) -> None:
        error: LuwuError = ServerError(f"the server at {self.url} ended the session; run again to resume")
        try:
            for event in self._stub.Watch(pb.WatchRequest(), metadata=self._metadata):
                if event.HasField("watching"):
                    self._watching.set()
                elif event.HasField("failure"):
                    message = self._with_address(event.failure.message)
                    self._end(error_named(event.failure.error, ServerError)(message))
                elif event.HasField("closing"):
                    self._end(ServerError(self._with_address(event.closing.message)))
                else:
                    self._on_event(event)
        except grpc.RpcError as broken:
            error = self._translated(broken, "watching")
        except Exception as broken:  # raised by the events' taker: without this thread nobody would see the session end
            error = ServerError(f"what the server at {self.url} sent could not be used: {broken}")
        self._end(error)
        self._watching.set()

    def _end(self, error: LuwuError) -> None:
        with self._lock:
            if self._closed or self._error is not None:
                return
            self._error = error
        self._on_end(error)

    def _translated(self, error: grpc.RpcError, what: str) -> LuwuError:
        sent = error_from(error.trailing_metadata(), error.details() or "")
        if sent is not None:
            return type(sent)(self._with_address(str(sent)))
        if error.code() in ENDED:
            self._hear_why()
        if self._error is not None:
            return self._again(self._error)
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServerError(f"the server at {self.url} did not answer in time while {what}; look at its log")
        return ServerError(
            f"the server at {self.url} ended while {what} ({_reason(error)}); "
            "start it where it is down, and run again to resume at the last committed step"
        )

    def _with_address(self, message: str) -> str:
        """Add the server's address to a message that a server begins with itself: a worker may have several servers."""
        return re.sub(r"^the server ", f"the server at {self.url} ", message)

    def _hear_why(self) -> None:
        """Wait for the server's reason on the watch, which may come after the end of a call."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            with saying(log, f"the reason why the server at {self.url} ended", self._timeouts.close_seconds):
                self._thread.join(self._timeouts.close_seconds)

    @staticmethod
    def _again(error: LuwuError) -> LuwuError:
        """Return a copy of the error to raise once more: an exception belongs to one place."""
        return type(error)(str(error))


def _reason(error: grpc.RpcError) -> str:
    details = (error.details() or "no details").split("last error: ")[-1]
    return f"{error.code().name.lower()}: {details}"
