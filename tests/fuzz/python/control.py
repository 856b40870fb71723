"""Messages of a participant to a server's control plane, joined or not: an answer, or an error of luwu.errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError
from tests.fuzz.python.support import Input, faults_raised

from luwu.control import control_pb2 as pb
from luwu.control.control_pb2_grpc import ControlServicer
from luwu.control.credentials import (
    NONCE_BYTES,
    RELEASE_REQUEST,
    STATUS_REQUEST,
    TAKE_OVER_REQUEST,
    TRACE_REQUEST,
    Credentials,
)
from luwu.control.rpc import ERROR_METADATA, PROTOCOL_VERSION, SESSION_METADATA
from luwu.core import errors
from luwu.core.division import Standing
from luwu.core.manifest import Manifest
from luwu.core.trace import RECORD
from luwu.errors import AuthenticationError, LuwuError, ServerError
from luwu.server.balance import RunBalance
from luwu.server.gate import Gate
from luwu.server.grpc_carrier import servicer_of
from luwu.server.launchers import NoLaunchers
from luwu.server.network_service import NetworkService
from luwu.server.participants import LauncherMember, Participants
from luwu.server.progress import RunProgress
from luwu.server.run import Terms, Worker, claim_nothing
from luwu.server.service import Attached
from luwu.server.topology import PacketOrigin, SwitchMember
from luwu.server.tracing import RunTracing
from luwu.server.vacancies import Vacancies
from luwu.store.run_record import Counts

KEY = b"a key that is long enough"
PEER = "10.0.0.1:4000"
CALLS = {
    "Hello": pb.HelloRequest, "JoinWorker": pb.JoinWorkerRequest, "JoinSwitch": pb.JoinSwitchRequest,
    "Watch": pb.WatchRequest, "Standing": pb.StandingRequest, "Attach": pb.AttachRequest,
    "Initialised": pb.InitialisedRequest, "SetSegments": pb.SetSegmentsRequest, "Begin": pb.BeginRequest,
    "Commit": pb.CommitRequest, "Decide": pb.DecideRequest, "Snapshot": pb.SnapshotRequest,
    "Report": pb.ReportRequest, "Leave": pb.LeaveRequest, "Progress": pb.ProgressRequest, "Status": pb.StatusRequest,
    "Divide": pb.DivideRequest, "MakeDurable": pb.MakeDurableRequest, "JoinLauncher": pb.JoinLauncherRequest,
    "Read": pb.ReadRequest, "Tell": pb.TellRequest, "Offer": pb.OfferRequest,
    "Trace": pb.TraceRequest, "TraceRecords": pb.TraceRecordsRequest,
    "Follow": pb.FollowRequest, "Release": pb.ReleaseRequest, "TakeOver": pb.TakeOverRequest,
}  # fmt: skip
QUESTIONS = {
    "Status": STATUS_REQUEST, "Trace": TRACE_REQUEST, "Release": RELEASE_REQUEST, "TakeOver": TAKE_OVER_REQUEST,
}  # fmt: skip
JOINS = ("JoinWorker", "JoinSwitch", "JoinLauncher")
PROVED = (*JOINS, "Follow", *QUESTIONS)
BEFORE_JOIN = ("Hello", *PROVED)
_MOST_CALLS = 16


class _AbortedError(Exception):
    """gRPC's way out of a handler that answers with an error."""


class _Context:
    """The part of gRPC's context that the service uses."""

    def __init__(self, session: bytes | str, goes_on: bool = True) -> None:
        self.error = ""
        self._goes_on = goes_on
        self._session = session.hex() if isinstance(session, bytes) else session

    def peer(self) -> str:
        return PEER

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("user-agent", "x"), (SESSION_METADATA, self._session)]

    def is_active(self) -> bool:
        return self._goes_on

    def add_callback(self, _: object) -> bool:
        return self._goes_on

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self.error = dict(metadata)[ERROR_METADATA]

    def abort(self, code: object, text: str) -> None:
        kind = getattr(errors, self.error)
        assert issubclass(kind, LuwuError) and text, "an error has a class and a message"
        text.encode()
        raise _AbortedError


class _Door:
    def peer(self, name: str) -> str:
        return name

    def admit(self, name: str) -> None:
        assert name == PEER


class _Core:
    """Takes what the native core would: numbers in its ranges."""

    def __init__(self, initialised: bool) -> None:
        self.initialised = initialised

    def set_segments(self, block: int, segments: list[tuple[int, int]]) -> None:
        assert 0 <= block < 1 << 32 and all(0 <= end < 1 << 64 and 0 <= group < 1 << 32 for end, group in segments)

    def make_durable(self, at_most_seconds: float) -> bool:
        return self.initialised

    def stats(self) -> dict[str, int]:
        return {"step": 3, "unwritten": 1}

    def look(self) -> bytes:
        return b"\2"

    def take_snapshot(self) -> int:
        return 3

    def start_trace(self, attempts: int, most_records: int, most_of_worker: int) -> None:
        assert 0 < attempts < 1 << 32 and 0 < most_of_worker <= most_records < 1 << 28

    def end_trace(self) -> None: ...

    def give_trace_up(self) -> None: ...

    def take_trace(self) -> tuple[bytes, int, int, int] | None:
        return bytes(RECORD.itemsize), 0, 1, 2

    @property
    def trace_request(self) -> tuple[int, bool]:
        return 7, True


class _Run:
    """A run of one worker, whose steps end at once."""

    job = 5
    opened, step, workers, joined, missing = True, 3, 2, frozenset((0,)), (1,)
    block_names = ("h.0",)
    trace_request = (0, False)

    def __init__(self, initialised: bool) -> None:
        self._core = _Core(initialised)
        self.progress = RunProgress()
        self.balance = RunBalance()
        self.tracing = RunTracing()
        self.vacancies = Vacancies(1.5)
        self.last_attempt: int | None = None
        self.claimant = ""

    def peer_of(self, rank: int) -> str:
        return PEER

    def stats(self) -> dict[str, Any]:
        return {"attempts": 4, "rolled_back": 1, "waits_for_room": ("folder", 0, 1.0)}

    def error(self) -> LuwuError | None:
        return None if self._core.initialised else ServerError("it has failed")

    @contextlib.contextmanager
    def core(self) -> Iterator[_Core]:
        yield self._core

    def raise_if_ended(self) -> None:
        raise ServerError("the run has ended")

    def let_in(self) -> None: ...

    def holds(self, rank: int, tenure: int) -> bool:
        return tenure == 1

    def begin(
        self, worker: Worker, groups: list[tuple[float, ...]], norm: float | None, scale: Any
    ) -> tuple[int, bool, int]:
        return 0, bool(groups), 3

    def commit(
        self, worker: Worker, roll_back: bool, pushes: int, goes_on: Any, before: Callable[[], None]
    ) -> tuple[int, float | None] | None:
        before()
        return None if pushes else (int(not roll_back), 0.5)

    def decide(
        self, worker: Worker, ended: int, commits: bool | None, squares: float | None, goes_on: Any
    ) -> tuple[int, float | None]:
        return (pb.VOID if commits is None else int(commits)), squares

    def agree_on_jobs(self, jobs: tuple[int, ...]) -> None:
        if len(jobs) > 1:
            raise ServerError("another server has begun a new run")


class _Launchers(NoLaunchers):
    """Answers each launcher that has joined."""

    def offer(self, launcher: LauncherMember, workers: int) -> None:  # type: ignore[override]
        assert workers > 0

    def read(self, name: str, offset: int) -> bytes:  # type: ignore[override]
        return name.encode()[offset:]

    def tell(self, launcher: LauncherMember, rank: int, report: str) -> float:  # type: ignore[override]
        return 1.5


class _Runs:
    """The part of the runs that the service uses."""

    def __init__(self) -> None:
        self.participants = Participants()
        self.run = _Run(initialised=True)

    def present_switches(self) -> list[Any]:
        return []

    def join_worker(self, rank: int, workers: int, peer: str) -> Worker:
        self.run = _Run(initialised=rank % 2 == 0)
        self.run.progress.expect(rank)
        worker = Worker(name=f"worker {rank}", peer=peer, rank=rank, run=self.run)  # type: ignore[arg-type]
        self.participants.add(worker)
        return worker

    def join_switch(self, switch: SwitchMember) -> None:
        assert switch.name.isprintable()
        self.participants.add(switch)

    def join_launcher(self, launcher: LauncherMember) -> None:
        assert launcher.host.isprintable()
        self.participants.add(launcher)

    def attach(self, worker: Worker, manifest: Manifest, terms: Terms, place: PacketOrigin, claim: Any) -> Attached:
        assert Manifest.from_json(manifest.to_json()) == manifest and terms == terms
        worker.place = place
        first, word = claim(Counts(3, 4, 1))
        counts = {"step": 3, "attempts": 4, "rolled_back": 1}
        return Attached(False, counts, (2.0, 5) if manifest.blocks else None, b"token", first, word)

    def watches(self, participant: Any) -> bool:
        before, participant.watched = participant.watched, True
        return not before

    def leave(self, participant: Any, failure: str) -> None:
        assert failure.isprintable()
        participant.tell(pb.Event(closing=pb.Closing(message="left")))
        participant.end_watch()
        self.participants.remove(participant, ServerError("left"))

    def gone(self, participant: Any) -> None: ...


class _Standby:
    """The part of the way to a standby that the service uses."""

    def wait_for_it(self) -> None: ...

    def note_run(self) -> None: ...

    def status(self) -> pb.StandbyStatus:
        return pb.StandbyStatus(other="luwu://10.0.0.2:7070")

    def follow(self, request: pb.FollowRequest, host: str, step: int) -> pb.FollowReply:
        assert host == "10.0.0.1"
        return pb.FollowReply(uuid="u")

    def release(self, anyway: bool) -> bool:
        return anyway


def test_one_input(data: bytes) -> None:
    given = Input(data)
    credentials = Credentials(KEY)
    service = servicer_of(NetworkService(
        _Runs(), Gate(credentials, 60.0), _Door(), "tcp", lambda: Standing("u", (3,)), lambda manifest: True,  # type: ignore[arg-type]
        lambda claim, counts: claim_nothing(counts), _reported, _Launchers(), _Standby(),  # type: ignore[arg-type]
    ))  # fmt: skip
    session, nonce = b"", b""
    for _ in range(_MOST_CALLS):
        if not given:
            break
        chosen = given.number()
        method = list(CALLS)[chosen % len(CALLS)]
        try:
            request = CALLS[method].FromString(given.bytes(given.number(2)))
        except DecodeError:
            continue  # gRPC refuses it
        if method in PROVED and chosen < 192:
            nonce = _prove(service, credentials, method, request, chosen // 64, nonce)
        other = given.bytes(8).decode("latin-1") if chosen >= 224 else session
        answer = _call(service, method, request, other, goes_on=chosen % 5 != 4)
        if answer is not None and method in PROVED:
            assert chosen < 64, "these need an open challenge and its proof"
            if method in JOINS:
                session = answer.session
                assert session, "who joins has a session"


def _prove(
    service: ControlServicer, credentials: Credentials, method: str, request: Any, how: int, before: bytes
) -> bytes:
    """Make a join good, with an open challenge and the proof for what it asks; or its proof, or its challenge, is not.

    Returns the challenge of the last good proof.
    """
    from luwu.control.credentials import follow_request, launcher_request, switch_request, worker_request

    nonce = bytes(NONCE_BYTES)
    hello = _call(service, "Hello", pb.HelloRequest(protocol_version=PROTOCOL_VERSION, nonce=nonce), b"")
    if method in QUESTIONS:
        asked = QUESTIONS[method]
    elif method == "JoinLauncher":
        asked = launcher_request(request.host)
    elif method == "Follow":
        asked = follow_request(request.url, request.advertise, request.port, request.token)
    else:
        asked = switch_request(request) if method == "JoinSwitch" else worker_request(request.rank, request.workers)
    forged = bytes(8) + nonce + bytes(32)  # a challenge that nobody made
    request.nonce = hello.nonce if how < 2 else before or forged
    if how != 1:  # the key is known
        request.proof = credentials.prove_participant(nonce, request.nonce, asked)
    return before if how == 1 else bytes(request.nonce)


def _call(service: ControlServicer, method: str, request: Any, session: bytes | str, goes_on: bool = True) -> Any:
    context = _Context(session, goes_on)
    try:
        with faults_raised():
            answer = getattr(service, method)(request, context)
        if method == "Watch":
            next(answer)
            if not goes_on:
                assert not list(answer), "a watch that nobody holds ends"
            answer.close()
            return None
        answer.SerializeToString()
    except _AbortedError:
        joined = bool(session)
        assert joined or method in BEFORE_JOIN or context.error == AuthenticationError.__name__, "strangers get nothing"
        return None
    assert session or method in BEFORE_JOIN, "a call without a session is refused"
    return answer


def _reported(rank: int, report: Any) -> None:
    assert rank >= 0
