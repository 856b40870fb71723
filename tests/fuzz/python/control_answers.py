"""Messages of a server, or somebody in its place, to a participant of the control plane."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from tests.fuzz.python.support import Input, allowing

from luwu.control import control_pb2 as pb
from luwu.control.address import HostPort
from luwu.control.credentials import Credentials
from luwu.control.rpc import ERROR_METADATA, PROTOCOL_VERSION
from luwu.control.timeouts import Timeouts
from luwu.control.wiring import make_wiring
from luwu.core.manifest import Manifest
from luwu.errors import LuwuError
from luwu.session.remote_endpoint import RemoteEndpoint
from luwu.session.remote_server import RemoteServer

TIMEOUTS = Timeouts(
    connect_seconds=0.03, retry_seconds=0.01, answer_seconds=0.05, leave_seconds=0.05, close_seconds=0.01
)
ANSWERS = {
    "Hello": pb.HelloReply, "JoinWorker": pb.JoinReply, "Standing": pb.StandingReply, "Attach": pb.AttachReply,
    "Begin": pb.BeginReply, "Commit": pb.CommitReply, "Decide": pb.CommitReply, "Leave": pb.Empty,
}  # fmt: skip
CODES = list(grpc.StatusCode)
MANIFEST = Manifest("float32", 2048, ())
_MOST_EVENTS = 8


class _CallError(grpc.RpcError):
    """A status as a server sends it."""

    def __init__(self, given: Input) -> None:
        self._code = CODES[given.number() % len(CODES)]
        self._error = given.bytes(given.number() % 32).decode("latin-1")
        self._text = given.bytes(given.number()).decode("utf-8", "replace")

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((ERROR_METADATA, self._error),) if self._error else ()


class _Answer:
    """A future that has ended."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def result(self, timeout: float) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class _Method:
    def __init__(self, name: str, given: Input) -> None:
        self._name, self._given = name, given

    def __call__(self, request: Any, timeout: float = 0.0, metadata: Any = ()) -> Any:
        answer = _next(self._name, self._given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def future(self, request: Any, timeout: float | None, metadata: Any) -> _Answer:
        return _Answer(_next(self._name, self._given))


class _Stub:
    """A server that answers whatever the input says."""

    def __init__(self, given: Input) -> None:
        self._given = given
        self.joined = threading.Event()

    def __getattr__(self, name: str) -> _Method:
        return _Method(name, self._given)

    def Watch(self, request: Any, metadata: Any) -> Iterator[pb.Event]:  # noqa: N802
        yield pb.Event(watching=pb.Watching())
        self.joined.wait()
        for _ in range(self._given.number() % _MOST_EVENTS):
            with contextlib.suppress(DecodeError):
                yield pb.Event.FromString(self._given.bytes(self._given.number()))
        if self._given.number() % 4 == 3:
            raise _CallError(self._given)


class _Data:
    """A link and its data plane, which do nothing."""

    def endpoint(self) -> _Data:
        return self

    def count_wait(self, begun_ns: int, waited_since_ns: int) -> None: ...

    def begin_step(self, server: int, epoch: int, given_up: bool) -> None:
        assert 0 <= epoch < 1 << 32

    def end_step(self) -> None: ...


class _Division:
    def servers_of(self, block: int) -> list[int]:
        return [0]


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    credentials = Credentials(b"a key that is long enough" if mode & 1 else None)
    server = RemoteServer(
        HostPort("127.0.0.1", 9),
        0,
        1,
        credentials,
        TIMEOUTS,
        lambda error: None,
        lambda server, text: None,
        lambda rank: None,
        lambda server, attempt: None,
    )
    server.control._stub = stub = _Stub(given)  # type: ignore[assignment]
    try:
        if allowing(LuwuError, server.join) is None:
            return
        stub.joined.set()
        server.control._thread.join()
        server.control._error = None  # the watch is over; go on as if it were not
        standing = allowing(LuwuError, lambda: server.standing((1, 2)))
        assert standing is None or all(step >= 0 for step in standing.steps)
        allowing(LuwuError, lambda: server.has_store(MANIFEST))
        attached = allowing(LuwuError, lambda: server.control.call("Attach", pb.AttachRequest()))
        if attached is not None:
            place = allowing(LuwuError, lambda: server.place(attached))
            if place is not None:
                topology = place.topology
                allowing(LuwuError, lambda: make_wiring(topology.network, place.job, 1, topology.incarnation))
        allowing(LuwuError, lambda: _step(server))
    finally:
        stub.joined.set()
        server.close(leave=bool(mode & 2))


def _step(server: RemoteServer) -> None:
    endpoint = RemoteEndpoint(_Data(), [server.control], _Division())  # type: ignore[arg-type]
    endpoint.begin([(0.1,)])
    assert endpoint.wait(endpoint.commit()) in (pb.COMMITTED, pb.ROLLED_BACK, pb.NOT_FINITE, pb.VOID), "a step ends"
    assert endpoint.grad_norm is None or endpoint.grad_norm >= 0 or endpoint.grad_norm != endpoint.grad_norm


def _next(name: str, given: Input) -> Any:
    """The next answer: an error, or a message, which speaks the right protocol more often than not."""
    how = given.number()
    if how % 4 == 3:
        return _CallError(given)
    try:
        answer = ANSWERS[name].FromString(given.bytes(given.number()))
    except DecodeError:
        return _CallError(given)
    if name == "Hello" and how % 4 < 2:
        answer.protocol_version = PROTOCOL_VERSION
    return answer
