"""The control plane's service, as every server answers it: messages of control.proto to a set of workers.

Servers differ in who may join and in what a worker attaches to. Carriers (`grpc_carrier`, `socket_carrier`) bring the
calls, and take errors back.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from luwu.control import control_pb2 as pb
from luwu.control.rpc import PROTOCOL_VERSION, check_version
from luwu.control.timeouts import TIMEOUTS
from luwu.core.aggregation import MEAN
from luwu.core.errors import ConfigError, LuwuError, ServerError
from luwu.core.progress import Activity, WorkerPhase
from luwu.core.protocols import LossScale
from luwu.server.membership import Membership, lost_meanwhile
from luwu.server.participants import on_one_line
from luwu.server.progress import Report
from luwu.server.tracing import RunTracing, Sender, TracedSwitch
from luwu.store.run_record import Counts

CallerT = TypeVar("CallerT")

log = logging.getLogger(__name__)


class Attached(NamedTuple):
    """The answer to a worker's `attach`."""

    fresh: bool
    stats: dict[str, int]
    loss_scale: LossScale | None
    token: bytes
    first: Counts
    word: str


def loss_scale_of(stats: dict[str, Any]) -> LossScale | None:
    """Return the loss scale of the last committed step from a core's counts; None: that step had none."""
    recorded = stats["loss_scale"]
    return None if recorded is None else (recorded, stats["good_steps"])


class Joined(Protocol):
    """A worker that has joined."""

    @property
    def rank(self) -> int:
        """Number of the worker among the run's, from 0."""
        ...

    @property
    def run(self) -> Membership[Any]:
        """The run that it has joined."""
        ...

    @property
    def tenure(self) -> int:
        """Its tenure of the place, see `Admission`."""
        ...


def trace_of(run: Membership[Any], request: pb.TraceRequest, switches: Sequence[TracedSwitch] = ()) -> pb.TraceReply:
    """Begin a trace of a run, or return a piece of the one that was begun, or give it up.

    Args:
        run: the run.
        request: what is asked for.
        switches: switches that have joined its server.

    Raises:
        ServerError: the run has not begun, or has ended. Others: see `RunTracing`.
    """
    if (error := run.error()) is not None:
        raise ServerError(f"trace: expected a run that goes on, found one that has failed: {error}")
    with run.core() as core:
        if request.steps:
            profiled = request.profile_worker if request.HasField("profile_worker") else None
            workers = range(0 if request.alone else run.workers)
            run.tracing.start(core, workers, request.steps, request.most_bytes, profiled, switches)
            return pb.TraceReply(waits_for="the run's next steps")
        if request.end and request.alone:
            run.tracing.give_up(core)
            return pb.TraceReply()
        if request.end:
            run.tracing.end(core)
        present: list[Sender] = [*run.joined, *(switch.name for switch in switches)]
        return run.tracing.answer(core, present, run.block_names, request.offset)


def take_records(tracing: RunTracing, sender: Sender, request: pb.TraceRecordsRequest) -> pb.TraceRecordsReply:
    """Take records of a worker or a switch, and tell the time. Raises ConfigError, see `RunTracing.take`."""
    if request.records or request.last or request.HasField("profile"):
        tracing.take(sender, request)
    return pb.TraceRecordsReply(clock_ns=time.monotonic_ns(), profile_bytes=tracing.profile_bytes(sender))


def error_to_tell(method: str, error: Exception) -> LuwuError:
    """Return the error that a caller gets for an exception of a method.

    One that is not LuWu's own is logged with its traceback: it is a fault of the server's, or of a function that it was
    given.
    """
    if isinstance(error, LuwuError):
        return error
    if isinstance(error, MemoryError):
        return ServerError("the server has no memory left; lower --memory, or memory= of luwu.open")
    log.error("control method %s failed", method, exc_info=error)
    return ServerError(f"the server failed in {method}: {error!r}; look at its log")


class ControlService(ABC, Generic[CallerT]):
    """Methods of control.proto that every server answers in the same way; they raise errors of `luwu.errors`.

    Each takes the request, and the caller as the carrier knows it.

    Args:
        on_report: called with (rank, report) for everything a worker reports.
        aggregate: how workers' gradients become one, see `luwu.core.aggregation`.
    """

    def __init__(self, on_report: Callable[[int, dict[str, Any]], None], aggregate: str = MEAN) -> None:
        self._on_report = on_report
        self._aggregate = aggregate

    @abstractmethod
    def worker_of(self, caller: CallerT) -> Joined:
        """Return the worker that makes a call; raises AuthenticationError or ServerError if it has not joined."""

    @abstractmethod
    def attach(self, caller: CallerT, request: pb.AttachRequest) -> Attached:
        """Open the store for a worker's model; return when the worker may go on."""

    def Hello(self, request: pb.HelloRequest, caller: CallerT) -> pb.HelloReply:  # noqa: N802
        """Greet a participant of the same protocol."""
        check_version(request.protocol_version)
        return pb.HelloReply(protocol_version=PROTOCOL_VERSION)

    @abstractmethod
    def JoinWorker(self, request: pb.JoinWorkerRequest, caller: CallerT) -> pb.JoinReply:  # noqa: N802
        """Let a worker in."""

    @abstractmethod
    def Standing(self, request: pb.StandingRequest, caller: CallerT) -> pb.StandingReply:  # noqa: N802
        """Describe the server's store."""

    def Attach(self, request: pb.AttachRequest, caller: CallerT) -> pb.AttachReply:  # noqa: N802
        """Open the store for a worker's model."""
        attached = self.attach(caller, request)
        reply = pb.AttachReply(
            fresh=attached.fresh,
            data_token=attached.token,
            step=attached.stats["step"],
            attempts=attached.stats["attempts"],
            rolled_back=attached.stats["rolled_back"],
            first_step=attached.first.step,
            first_attempts=attached.first.attempts,
            first_rolled_back=attached.first.rolled_back,
            word=attached.word,
            worker_return_seconds=self.worker_of(caller).run.vacancies.seconds,
            aggregate=self._aggregate,
        )
        if attached.loss_scale is not None:
            scale, good_steps = attached.loss_scale
            reply.loss_scale.CopyFrom(pb.LossScale(scale=scale, good_steps=good_steps))
        return reply

    def Initialised(self, request: pb.InitialisedRequest, caller: CallerT) -> pb.Empty:  # noqa: N802
        """Note that the first values are committed."""
        run = self.worker_of(caller).run
        with run.core() as core:
            if not core.initialised:
                raise ConfigError("initialised: expected the first values in the store, found none; write them before")
        run.let_in()
        return pb.Empty()

    def SetSegments(self, request: pb.SetSegmentsRequest, caller: CallerT) -> pb.Empty:  # noqa: N802
        """Set the optimizer groups of a block."""
        with self.worker_of(caller).run.core() as core:
            core.set_segments(request.block, [(segment.end, segment.group) for segment in request.segments])
        return pb.Empty()

    def Snapshot(self, request: pb.SnapshotRequest, caller: CallerT) -> pb.SnapshotReply:  # noqa: N802
        """Take a snapshot of the last step that was answered; a server that ends does not wait for that step's room."""
        run = self.worker_of(caller).run
        with run.core() as core:
            while not core.make_durable(TIMEOUTS.look_seconds):
                run.raise_if_ended()
            return pb.SnapshotReply(step=core.take_snapshot())

    def MakeDurable(self, request: pb.MakeDurableRequest, caller: CallerT) -> pb.MakeDurableReply:  # noqa: N802
        """Put the last step that was answered on the disk; return after a moment at the latest."""
        with self.worker_of(caller).run.core() as core:
            done = core.make_durable(TIMEOUTS.look_seconds)
            stats = core.stats()
        return pb.MakeDurableReply(done=done, step=stats["step"] - stats["unwritten"])

    def Report(self, request: pb.ReportRequest, caller: CallerT) -> pb.Empty:  # noqa: N802
        """Pass on a worker's report."""
        self.pass_on(self.worker_of(caller).rank, request.report)
        return pb.Empty()

    def pass_on(self, rank: int, text: str) -> None:
        """Pass on a worker's report, JSON; raises ConfigError where it is none."""
        try:
            report = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"report: expected JSON, found {error}") from None
        self._on_report(rank, report)

    def Progress(self, request: pb.ProgressRequest, caller: CallerT) -> pb.Empty:  # noqa: N802
        """Note what a worker does."""
        worker = self.worker_of(caller)
        if request.phase not in pb.WorkerPhase.values():
            raise ConfigError(f"phase: expected one of {', '.join(pb.WorkerPhase.keys())}, found {request.phase}")
        activity = Activity(WorkerPhase(request.phase), on_one_line(request.block), request.acquired, request.pushed)
        link = request.link if request.HasField("link") else None
        report = Report(request.attempts, activity, on_one_line(request.place), request.memory_bytes, link)
        worker.run.progress.hear(worker.rank, report)
        return pb.Empty()

    def Divide(self, request: pb.DivideRequest, caller: CallerT) -> pb.DivideReply:  # noqa: N802
        """Divide the batch of a worker's attempt by the speeds of all workers."""
        worker = self.worker_of(caller)
        run = worker.run
        if self._aggregate != MEAN:
            raise ConfigError(
                f"aggregate: expected equal shares of the batch for {self._aggregate}, found shares by speed "
                "(balance, or divide_batch); leave that out"
            )
        attempts = run.stats().get("attempts", 0)
        if request.attempt != attempts:
            raise ConfigError(f"attempt: expected {attempts}, which is next, found {request.attempt}")
        if not run.holds(worker.rank, worker.tenure):
            raise lost_meanwhile(worker.rank)
        counts = run.balance.divide(worker.rank, run.workers, request.attempt, request.rows, request.seconds)
        return pb.DivideReply(rows=counts)

    def TraceRecords(self, request: pb.TraceRecordsRequest, caller: CallerT) -> pb.TraceRecordsReply:  # noqa: N802
        """Take a worker's records of a trace, and tell the time."""
        worker = self.worker_of(caller)
        if not worker.run.holds(worker.rank, worker.tenure):
            raise lost_meanwhile(worker.rank)  # another one's records may come from this place
        return take_records(worker.run.tracing, worker.rank, request)

    @abstractmethod
    def Trace(self, request: pb.TraceRequest, caller: CallerT) -> pb.TraceReply:  # noqa: N802
        """Begin a trace of the run, or give a piece of it."""

    @abstractmethod
    def Status(self, request: pb.StatusRequest, caller: CallerT) -> pb.StatusReply:  # noqa: N802
        """Describe the run."""

    def _with_aggregate(self, reply: pb.StatusReply) -> pb.StatusReply:
        reply.aggregate = self._aggregate
        return reply

    @abstractmethod
    def Leave(self, request: pb.LeaveRequest, caller: CallerT) -> pb.Empty:  # noqa: N802
        """Let a participant leave."""
