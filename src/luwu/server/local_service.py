"""The control plane's service for the workers of the server's machine, which share its memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from luwu.control import control_pb2 as pb
from luwu.core import native
from luwu.core.aggregation import MEAN
from luwu.core.errors import ConfigError, ServerError
from luwu.core.manifest import Manifest
from luwu.server.description import describe
from luwu.server.membership import Membership
from luwu.server.service import Attached, ControlService, loss_scale_of, trace_of
from luwu.store.folders import has_store
from luwu.store.run_record import Counts

TRANSPORT = "shared memory"


@dataclass
class LocalCaller:
    """A worker's connection, as the service's methods see it.

    Attributes:
        worker: the worker that has joined through it.
        left: the worker has left on purpose.
        files: open files to send beside the next answer.
        until_answered: is closed once that answer has been sent.
    """

    worker: LocalWorker | None = None
    left: bool = False
    files: list[int] = field(default_factory=list)
    until_answered: ExitStack = field(default_factory=ExitStack)


@dataclass(frozen=True)
class LocalWorker:
    """A worker that has joined a run of this machine. ``tenure``: see `Admission`."""

    rank: int
    run: Membership[native.ShmServer]
    tenure: int


class LocalService(ControlService[LocalCaller]):
    """Serves what workers of this machine call. Steps begin and end in shared memory, and nobody watches.

    Args:
        run: the set of workers.
        folders: folders of the store.
        first: returns the store's counts at which the run began, once the store is open.
        on_report: called with (rank, report) for everything a worker reports.
        aggregate: see `ControlService`.
    """

    def __init__(
        self,
        run: Membership[native.ShmServer],
        folders: list[Path],
        first: Callable[[], Counts],
        on_report: Callable[[int, dict[str, Any]], None],
        aggregate: str = MEAN,
    ) -> None:
        super().__init__(on_report, aggregate)
        self._run = run
        self._folders = folders
        self._first = first

    def JoinWorker(self, request: pb.JoinWorkerRequest, caller: LocalCaller) -> pb.JoinReply:  # noqa: N802
        """Let a worker in, one for each connection."""
        if caller.worker is not None:
            raise ConfigError(f"worker {caller.worker.rank} has joined already through this connection; open another")
        caller.worker = LocalWorker(request.rank, self._run, self._run.join(request.rank, request.workers))
        return pb.JoinReply(transport=TRANSPORT)

    def Standing(self, request: pb.StandingRequest, caller: LocalCaller) -> pb.StandingReply:  # noqa: N802
        """Say whether the store was made for the model. The rest is for servers that share a job."""
        self.worker_of(caller)
        has_model = bool(request.manifest) and has_store(self._folders, Manifest.from_json(request.manifest))
        return pb.StandingReply(has_model=has_model)

    def attach(self, caller: LocalCaller, request: pb.AttachRequest) -> Attached:
        """Open the store for a worker's model; return when there are first values, or to rank 0, which writes them."""
        worker = self.worker_of(caller)
        rank = worker.rank
        returns = rank in self._run.vacancies
        fresh = self._run.attach(rank, Manifest.from_json(request.manifest), worker.tenure)
        core = caller.until_answered.enter_context(self._run.core())  # it may not close while its files are sent
        if returns:
            core.take_place(rank)
        stats = self._run.stats()  # after that: no step ends without this worker
        caller.files = list(core.files_of(rank))
        return Attached(fresh, stats, loss_scale_of(stats), b"", self._first(), "")

    def Status(self, request: pb.StatusRequest, caller: LocalCaller) -> pb.StatusReply:  # noqa: N802
        """Describe the run to anybody who may open the socket."""
        return self._with_aggregate(describe(self._run, request.look))

    def Trace(self, request: pb.TraceRequest, caller: LocalCaller) -> pb.TraceReply:  # noqa: N802
        """Trace the run for anybody who may open the socket."""
        return trace_of(self._run, request)

    def Leave(self, request: pb.LeaveRequest, caller: LocalCaller) -> pb.Empty:  # noqa: N802
        """Let a worker leave; its connection ends."""
        caller.left = True
        return pb.Empty()

    def worker_of(self, caller: LocalCaller) -> LocalWorker:
        """Return the worker that makes a call; raises ServerError if it has not joined."""
        if caller.worker is None:
            raise ServerError("a worker must join before anything else")
        return caller.worker

    def ended(self, caller: LocalCaller) -> None:
        """Note that a connection has ended: without leaving first, that is the loss of its worker."""
        if caller.worker is not None:
            end = self._run.leave if caller.left else self._run.lose
            end(caller.worker.rank)
