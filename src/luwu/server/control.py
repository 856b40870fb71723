"""The control plane's gRPC service: translates between messages and `Runs`, and lets nobody by without a token."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import grpc

from luwu.control import control_pb2 as pb
from luwu.control import control_pb2_grpc
from luwu.control.credentials import switch_request, worker_request
from luwu.control.rpc import ERROR_METADATA, PROTOCOL_VERSION, SESSION_METADATA, error_text
from luwu.core.errors import AuthenticationError, ConfigError, LuwuError, ServerError
from luwu.core.manifest import Manifest
from luwu.core.striping import Share, Standing
from luwu.server.cores import StepEnding
from luwu.server.door import ControlDoor
from luwu.server.gate import Gate
from luwu.server.participants import Participant, on_one_line
from luwu.server.run import Terms, Worker
from luwu.server.runs import Runs, claim_nothing
from luwu.server.topology import Place, SwitchMember
from luwu.store.run_record import Claim, Counts

log = logging.getLogger(__name__)

Handler = TypeVar("Handler", bound=Callable[..., Any])


def answering(handler: Handler) -> Handler:
    """Let a method's errors travel to the caller as their class and message."""

    @functools.wraps(handler)
    def answer(self: ControlService, request: Any, context: Any) -> Any:
        try:
            return handler(self, request, context)
        except LuwuError as error:
            _abort(context, error)
        except MemoryError:
            _abort(context, ServerError("the server has no memory left; lower --memory"))

    return answer  # type: ignore[return-value]


def _abort(context: Any, error: LuwuError) -> NoReturn:
    authentic = not isinstance(error, AuthenticationError)
    context.set_trailing_metadata(((ERROR_METADATA, type(error).__name__),))
    context.abort(grpc.StatusCode.ABORTED if authentic else grpc.StatusCode.UNAUTHENTICATED, error_text(error))
    raise AssertionError("abort raises")


def _share_of(request: pb.AttachRequest) -> Share:
    if not request.HasField("share"):
        return Share()
    share = request.share
    return Share(share.servers, share.uuid, share.step if share.HasField("step") else None)


def _ended(ending: StepEnding | None) -> pb.CommitReply:
    end, squares = ending or (pb.ROLLED_BACK, None)
    return pb.CommitReply(end=pb.StepEnd.Name(end), squares=squares)


class ControlService(control_pb2_grpc.ControlServicer):
    """Serves control.proto.

    Args:
        runs: the runs to serve.
        gate: decides who may join.
        door: takes connections in.
        transport: name of the data plane, which workers must use, too.
        standing: describes the server's store.
        has_store: says whether that store was made for a manifest.
        claim: gives a run the store; called with the claim and the counts, see `luwu.store.run_record.claim_store`.
        on_report: called with (rank, report) for everything a worker reports.
    """

    def __init__(
        self,
        runs: Runs,
        gate: Gate,
        door: ControlDoor,
        transport: str,
        standing: Callable[[], Standing],
        has_store: Callable[[Manifest], bool],
        claim: Callable[[Claim, Counts], tuple[Counts, str]],
        on_report: Callable[[int, dict[str, Any]], None],
    ) -> None:
        self._runs = runs
        self._gate = gate
        self._door = door
        self._transport = transport
        self._standing = standing
        self._has_store = has_store
        self._claim = claim
        self._on_report = on_report

    @answering
    def Hello(self, request: pb.HelloRequest, context: Any) -> pb.HelloReply:  # noqa: N802
        """Challenge a participant of the same protocol."""
        if request.protocol_version != PROTOCOL_VERSION:
            log.warning("refused peer=%s why='protocol %d'", self._peer(context), request.protocol_version)
            raise ConfigError(
                f"protocol version: expected {PROTOCOL_VERSION}, found {request.protocol_version}; "
                "install the server's version of luwu"
            )
        nonce = self._gate.challenge(request.nonce, self._peer(context))
        return pb.HelloReply(protocol_version=PROTOCOL_VERSION, nonce=nonce, asks_for_key=self._gate.asks_for_key)

    @answering
    def JoinWorker(self, request: pb.JoinWorkerRequest, context: Any) -> pb.JoinReply:  # noqa: N802
        """Let a worker in."""
        asked = worker_request(request.rank, request.workers)
        proof = self._let_in(request, asked, context)
        worker = self._runs.join_worker(request.rank, request.workers, self._peer(context))
        if not context.is_active():  # it went while it waited, and will never watch
            self._runs.gone(worker)
        return pb.JoinReply(session=worker.token, proof=proof, transport=self._transport)

    @answering
    def JoinSwitch(self, request: pb.JoinSwitchRequest, context: Any) -> pb.JoinReply:  # noqa: N802
        """Let a switch in."""
        asked = switch_request(request)
        proof = self._let_in(request, asked, context)
        if on_one_line(request.name) != request.name:
            raise ConfigError(f"name: expected up to 200 printable letters, found {on_one_line(request.name)}")
        switch = SwitchMember(
            name=f"switch {request.name}",
            peer=self._peer(context),
            address=request.address,
            port=request.port,
            fan_in=request.fan_in,
            payload_bytes=request.payload_bytes,
            parent=request.parent,
        )
        self._runs.join_switch(switch)
        return pb.JoinReply(session=switch.token, proof=proof, transport=self._transport)

    def Watch(self, request: pb.WatchRequest, context: Any) -> Iterator[pb.Event]:  # noqa: N802
        """Send events to a participant. The end of this stream is the end of the participant."""
        participant = self._start_watch(request, context)
        yield pb.Event(watching=pb.Watching())
        while (event := participant.events.get()) is not None:
            yield event

    @answering
    def _start_watch(self, request: pb.WatchRequest, context: Any) -> Participant:
        participant = self._participant(context)
        if participant.watched:
            raise ConfigError(f"{participant.name} watches already")
        participant.watched = True
        if not context.add_callback(lambda: self._watch_ended(participant)):
            self._watch_ended(participant)
        return participant

    def _watch_ended(self, participant: Participant) -> None:
        participant.end_watch()
        self._runs.gone(participant)

    @answering
    def Standing(self, request: pb.StandingRequest, context: Any) -> pb.StandingReply:  # noqa: N802
        """Return the identity and the counts of this server's store."""
        self._worker(context)
        standing = self._standing()
        has_model = bool(request.manifest) and self._has_store(Manifest.from_json(request.manifest))
        return pb.StandingReply(uuid=standing.uuid, steps=standing.steps, has_model=has_model)

    @answering
    def Attach(self, request: pb.AttachRequest, context: Any) -> pb.AttachReply:  # noqa: N802
        """Open the store for a worker's model."""
        worker = self._worker(context)
        place = Place(request.address, request.port, request.payload_bytes, request.switch)
        terms = Terms(_share_of(request), frozenset(request.kept))
        claim = functools.partial(self._claim, Claim.from_json(request.run)) if request.run else claim_nothing
        attached = self._runs.attach(worker, Manifest.from_json(request.manifest), terms, place, claim)
        counts = attached.stats
        reply = pb.AttachReply(
            fresh=attached.fresh,
            data_token=attached.token,
            step=counts["step"],
            attempts=counts["attempts"],
            rolled_back=counts["rolled_back"],
            first_step=attached.first.step,
            first_attempts=attached.first.attempts,
            first_rolled_back=attached.first.rolled_back,
            word=attached.word,
        )
        if attached.loss_scale is not None:
            scale, good_steps = attached.loss_scale
            reply.loss_scale.CopyFrom(pb.LossScale(scale=scale, good_steps=good_steps))
        return reply

    @answering
    def Initialised(self, request: pb.InitialisedRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Note that the first values are committed."""
        run = self._worker(context).run
        with run.core() as core:
            if not core.initialised:
                raise ConfigError("initialised: expected the first values in the store, found none; write them before")
        run.let_in()
        return pb.Empty()

    @answering
    def SetSegments(self, request: pb.SetSegmentsRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Set the optimizer groups of a block."""
        with self._worker(context).run.core() as core:
            core.set_segments(request.block, [(segment.end, segment.group) for segment in request.segments])
        return pb.Empty()

    @answering
    def Begin(self, request: pb.BeginRequest, context: Any) -> pb.BeginReply:  # noqa: N802
        """Start an attempt at a step."""
        worker = self._worker(context)
        epoch, given_up = worker.run.begin(
            worker.rank,
            [tuple(group.values) for group in request.groups],
            request.max_grad_norm if request.HasField("max_grad_norm") else None,
            (request.loss_scale.scale, request.loss_scale.good_steps) if request.HasField("loss_scale") else None,
        )
        return pb.BeginReply(epoch=epoch, given_up=given_up)

    @answering
    def Commit(self, request: pb.CommitRequest, context: Any) -> pb.CommitReply:  # noqa: N802
        """End an attempt."""
        worker = self._worker(context)
        return _ended(worker.run.commit(worker.rank, request.roll_back, request.pushes, context.is_active))

    @answering
    def Decide(self, request: pb.DecideRequest, context: Any) -> pb.CommitReply:  # noqa: N802
        """Commit or roll back a prepared attempt for good."""
        squares = request.squares if request.HasField("squares") else None
        return _ended(self._worker(context).run.decide(request.commits, squares, context.is_active))

    @answering
    def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> pb.SnapshotReply:  # noqa: N802
        """Take a snapshot of the last step that was answered."""
        with self._worker(context).run.core() as core:
            return pb.SnapshotReply(step=core.take_snapshot())

    @answering
    def Report(self, request: pb.ReportRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Pass on a worker's report."""
        rank = self._worker(context).rank
        try:
            self._on_report(rank, json.loads(request.report))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"report: expected JSON, found {error}") from None
        return pb.Empty()

    @answering
    def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.Empty:  # noqa: N802
        """Let a participant leave; it may give the reason why it cannot go on."""
        self._runs.leave(self._participant(context), on_one_line(request.failure))
        return pb.Empty()

    def _peer(self, context: Any) -> str:
        return self._door.peer(context.peer())

    def _let_in(self, request: Any, asked: str, context: Any) -> bytes:
        proof = self._gate.check(request.nonce, request.proof, asked, self._peer(context))
        self._door.admit(context.peer())
        return proof

    def _participant(self, context: Any) -> Participant:
        for key, value in context.invocation_metadata():
            if key == SESSION_METADATA:
                try:
                    found = self._runs.participants.find(bytes.fromhex(value))
                    self._door.admit(context.peer())
                    return found
                except ValueError:
                    break
        raise AuthenticationError("session: expected its token with every call, found none; join first")

    def _worker(self, context: Any) -> Worker:
        participant = self._participant(context)
        if not isinstance(participant, Worker):
            raise ConfigError(f"{participant.name} is no worker and makes no steps")
        return participant
