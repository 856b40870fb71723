"""Base of all sessions: a worker's connection to a server."""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import TIMEOUTS, Timeouts
from luwu.control.waiting import saying
from luwu.core.aggregation import MEAN
from luwu.core.closing import close_after
from luwu.core.errors import ConfigError, LuwuError, ServerError
from luwu.core.forks import OfThisProcess
from luwu.core.manifest import Manifest
from luwu.core.progress import Activity
from luwu.core.protocols import Endpoint, LossScale
from luwu.core.room import DISK_FULL_WAIT_SECONDS, Room
from luwu.core.trace import WorkerTrace
from luwu.session.batch_share import BatchShare, WorkTimer
from luwu.session.progress import ProgressTeller
from luwu.session.trace_pieces import trace_pieces
from luwu.store.run_record import Counts

if TYPE_CHECKING:
    from luwu.server.server import LocalServer

SessionT = TypeVar("SessionT", bound="Session")

MOST_ROWS = 1 << 32

log = logging.getLogger(__name__)


def choose_place(rank: int | None, workers: int | None) -> tuple[int, int]:
    """Return this process's rank and the number of workers: as given, else by RANK and WORLD_SIZE, else one worker.

    Raises:
        ConfigError: there is no such rank.
    """
    rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    workers = int(os.environ.get("WORLD_SIZE", 1)) if workers is None else workers
    if not 0 <= rank < workers:
        raise ConfigError(f"rank: expected 0 to {workers - 1} for {workers} workers, found {rank}")
    return rank, workers


def no_model() -> ServerError:
    """Return the error of a call that needs a parallelized model."""
    return ServerError("the session has no model yet: call luwu.parallelize first")


class Session(OfThisProcess, ABC):
    """Membership of one worker in a job. Use it as a context manager, or `close` it at the end.

    Attributes:
        rank: number of this worker, from 0.
        workers: number of workers that make a step together.
        step: number of committed optimizer steps; training resumes there.
        attempts: number of attempts that have ended, rolled-back ones included: the number of batches that were used.
        rolled_back: number of attempts that were rolled back because a gradient was not finite.
        first: the store's counts when this run began in it: zeros, unless it started from another run's weights.
        word: the server's message about that for the user; mostly empty.
        loss_scale: loss scale of the store's last step when this worker attached; None: that step had none.
        endpoint: the data plane, there once `attach` returned.
        aggregate: how the workers' gradients become one: all but ``mean`` needs equal shares of a batch.
        room: wait for room on the disks that this worker itself writes to.
        trace: this worker's part of a trace.
    """

    _what = "this session"

    def __init__(self, rank: int, workers: int, room: Room | None = None, timeouts: Timeouts = TIMEOUTS) -> None:
        super().__init__()
        self._timeouts = timeouts
        self.rank = rank
        self.workers = workers
        self.step = 0
        self.attempts = 0
        self.rolled_back = 0
        self.first = Counts()
        self.word = ""
        self.worker_return_seconds = 0.0
        self.aggregate = MEAN
        self.loss_scale: LossScale | None = None
        self.room = room or Room(DISK_FULL_WAIT_SECONDS)
        self.trace = WorkerTrace()
        self._closed = False
        self._endpoint: Endpoint | None = None
        self._progress: ProgressTeller | None = None
        self._timer = WorkTimer()
        self._computes_on_device = False
        self._block_names: list[str] = []

    def __enter__(self: SessionT) -> SessionT:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_after(error, lambda: self._close_once(failed=error is not None))

    @property
    def endpoint(self) -> Endpoint:
        """The worker's data plane; raises ServerError before `attach`, ForkedError in a forked child."""
        self.require_process()
        if self._endpoint is None:
            raise no_model()
        return self._endpoint

    @property
    def server(self) -> LocalServer | None:
        """The server that this process embeds, if it does."""
        return None

    @abstractmethod
    def has_store(self, manifest: Manifest) -> bool:
        """Return true when the server has a store that was made for this model's blocks. Before `attach`."""

    def attach(self, manifest: Manifest, *, shared_window: bool = False, kept: Sequence[str] = ()) -> bool:
        """Open or create the server's store for this model.

        Args:
            manifest: the model's blocks and parameters.
            shared_window: map parameters so that a device can copy from them (CUDA).
            kept: names of blocks that stay on this worker's device, which it does not pull whenever it uses them.

        Returns:
            True if the store is fresh: this worker (rank 0) then writes the first values and calls `initialised`.

        Raises:
            ManifestMismatchError: the store holds another model.
            ConfigError: over UDP, other workers keep other blocks. Others: see `luwu.errors`.
        """
        self.require_process()
        if self._endpoint is not None:
            raise ConfigError("this session has a model already; open another session for another model")
        self._computes_on_device = shared_window
        self._block_names = [block.name for block in manifest.blocks]
        return self._attach(manifest, shared_window, kept)

    @abstractmethod
    def initialised(self) -> None:
        """Let the other workers in: the store's first values are committed."""

    @abstractmethod
    def set_segments(self, block: int, segments: Sequence[tuple[int, int]]) -> None:
        """Set the optimizer group of each part of a block: ascending (end element, group). Before the first step."""

    @abstractmethod
    def snapshot(self) -> int:
        """Keep the store, on every server, as the last step left it; training continues at once.

        Call it between two steps.

        Returns:
            The step, which `luwu snapshot` and the option ``--snapshot`` of other commands take as its name.

        Raises:
            StoreSpaceError: the disk has no room for what the next steps write; training may go on without it.
        """

    def wait_durable(self) -> int:
        """Return when the last step that was answered is on the disk, on every server; return that step.

        Where the server's ``durable`` is not ``step`` this makes the step a commit point. It does not hold up what the
        other workers do.

        Raises:
            StoreError, StoreSpaceError: the disk refused it. Others: see `luwu.errors`.
        """
        with saying(log, "the last step to be on the disk", None):
            while (step := self._make_durable()) is None:
                pass
        return step

    def divide_batch(self, rows: int) -> BatchShare:
        """Return this worker's rows of the next attempt's batch, divided so that all workers finish together.

        Call it before each attempt's forward, on every worker. Batches are divided evenly at first; after some attempts
        a worker that takes longer for a row gets fewer rows. Multiply the mean loss of the rows by the share's
        ``weight``: the step then is that of the mean over all rows, within rounding, however they are divided. The
        division depends on measured times, so a run that is made again may have other bits.

        Args:
            rows: rows of the whole batch, the same on every worker; at least one for each.

        Raises:
            ServerError: the session has no model yet. ConfigError: the model is on a GPU, another worker has another
            batch, or there are fewer rows than workers.
        """
        if not 0 < rows < MOST_ROWS:
            raise ConfigError(
                f"rows: expected 1 to {MOST_ROWS - 1}, found {rows}; give the whole batch's number of rows"
            )
        if self._computes_on_device:
            raise ConfigError(
                "divide_batch: expected a model on a CPU, found one on a GPU, whose time is not measured yet; divide "
                "evenly by session.rank and session.workers"
            )
        request = pb.DivideRequest(attempt=self.attempts, rows=rows, seconds=self._timer.seconds)
        share = BatchShare.of(self._divide(request).rows, self.rank)
        self._timer.begin(time.monotonic(), self._waited_seconds)
        return share

    @abstractmethod
    def report(self, report: dict[str, Any]) -> None:
        """Send something that JSON can hold to the program that started the server; nothing comes back."""

    def tell_progress(self, look: Callable[[], Activity | None]) -> None:
        """Begin to tell the server what this worker does, by ``look``, which another thread calls; None ends it."""
        self._progress = ProgressTeller(look, self, self._timeouts)
        self._progress.start()

    def send_trace(self) -> None:
        """Send this worker's records of a trace that has ended, where there are such. Another thread may call it.

        Raises:
            LuwuError: the session has ended.
        """
        finished = self.trace.take()
        if finished is None:
            return
        for piece in trace_pieces(finished, self._server_clocks(), self._block_names):
            self._send_records(piece)

    def profile_bytes(self) -> int:
        """Return the most bytes of a profile that the server asks of this worker in the trace that begins; 0: none."""
        with suppress(LuwuError):  # the calls of the step tell what has happened
            return int(self._ask_trace().profile_bytes)
        return 0

    def count_step(self, committed: bool) -> None:
        """Keep `step`, `attempts` and `rolled_back` after a commit was answered."""
        if committed and self._timer.runs:
            self._timer.end(time.monotonic(), self._waited_seconds)
        else:
            self._timer.drop()
        self.attempts += 1
        if committed:
            self.step += 1
        else:
            self.rolled_back += 1

    def close(self) -> None:
        """Leave the job; a server that this process embeds stops, up to a minute later, when the others have left.

        The store stands at its last commit. Leaving the ``with`` block by an exception instead counts as a worker's
        failure: the others get WorkerLostError (or ServerError, if the server was in this process) and do not wait.
        In a process that was forked from the one that opened the session it does nothing.

        Raises:
            StoreError, StoreSpaceError: this process is the server, and a step that was answered could not be written.
        """
        self._close_once(failed=False)

    def _close_once(self, *, failed: bool) -> None:
        if not self._closed and not self.forked:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()
            self.trace.give_up()  # what has not ended
            if not failed:
                with suppress(LuwuError):  # the end says what has happened
                    self.send_trace()
            self._end(failed=failed)

    def _note_attached(self, replies: Sequence[pb.AttachReply]) -> None:
        """Take counts, the first server's message and a loss scale from the servers' answers to `attach`."""
        reply = replies[0]
        self.step, self.attempts, self.rolled_back = reply.step, reply.attempts, reply.rolled_back
        self.first = Counts(reply.first_step, reply.first_attempts, reply.first_rolled_back)
        self.word = str(reply.word)
        self.worker_return_seconds = float(reply.worker_return_seconds)
        self.aggregate = str(reply.aggregate) or MEAN
        scaled = next((each.loss_scale for each in replies if each.HasField("loss_scale")), None)
        if scaled is not None:  # a server may have no block that needs one
            self.loss_scale = scaled.scale, scaled.good_steps

    @property
    def _waited_seconds(self) -> float:
        return float(self.endpoint.stats()["wait_seconds"])

    @abstractmethod
    def _attach(self, manifest: Manifest, shared_window: bool, kept: Sequence[str]) -> bool: ...

    @abstractmethod
    def _make_durable(self) -> int | None:
        """Ask every server to put the last step on its disk, and wait a moment; None: that takes longer."""

    @abstractmethod
    def _divide(self, request: pb.DivideRequest) -> pb.DivideReply:
        """Ask a server that every worker asks."""

    @abstractmethod
    def _server_clocks(self) -> list[tuple[int, int]]:
        """Return of each server the time to add to this process's clock to have its own, and its error; nanoseconds."""

    @abstractmethod
    def _ask_trace(self) -> pb.TraceRecordsReply:
        """Ask the first server about the trace that is under way."""

    @abstractmethod
    def _send_records(self, request: pb.TraceRecordsRequest) -> None:
        """Send records of a trace to the first server."""

    @abstractmethod
    def link_counts(self) -> pb.LinkCounts | None:
        """Return what this worker's links have carried; None: there are none yet. Another thread may call it."""

    @abstractmethod
    def send_progress(self, progress: pb.ProgressRequest) -> None:
        """Send a message and wait for nothing; raises LuwuError once the session has ended."""

    @abstractmethod
    def _end(self, *, failed: bool) -> None:
        """End the session; called once. A worker that failed does not leave first."""
