"""The workers of one run: joins, the model that opened the store, and departures. Every kind of server has it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

from luwu.control.waiting import until
from luwu.core.errors import ConfigError, LuwuError, ManifestMismatchError, ServerError, WorkerLostError
from luwu.core.manifest import Manifest, first_difference
from luwu.server.admission import Admission
from luwu.server.progress import LaggardWatch, RunProgress


class Core(Protocol):
    """Interface of a native server, as membership uses it: an open store, its pipeline, and its data plane."""

    @property
    def initialised(self) -> bool:
        """True if the store holds first values."""
        ...

    def set_segments(self, block: int, segments: list[tuple[int, int]]) -> None:
        """Set the optimizer group of each part of a block: ascending (end element, group)."""
        ...

    def worker_left(self, rank: int) -> None:
        """Note that the worker makes no more steps; fails the run when others are in one, or begin one later."""
        ...

    def worker_lost(self, message: str) -> None:
        """Fail the run: every wait raises WorkerLostError with this message."""
        ...

    def lose_worker(self, rank: int) -> None:
        """Let go of a lost worker: an attempt that it was in is void, and another may take its place."""
        ...

    def wait_for_place(self, rank: int, at_most_seconds: float) -> bool:
        """Return True once nothing of a lost worker is left at its place, or the run has failed; False: not in time."""
        ...

    def take_snapshot(self) -> int:
        """Take a snapshot of the last step that was answered, and return the step."""
        ...

    def close(self) -> None:
        """Fail the run, and return when every step that was answered is on the disk."""
        ...

    def failure(self) -> str | None:
        """Return the message of the error that the run failed with, or None."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened, and its committed step."""
        ...


CoreT = TypeVar("CoreT", bound=Core)

_LOOK_SECONDS = 0.2
"""Longest time in which a worker that waits for a place does not see that the run has ended."""

log = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT")


class _Lent(Generic[CoreT]):
    """A native server as callers see it. Only a call that is under way refers to the server itself.

    Frames of a caller may outlive the server: an error that the run keeps holds those that it passed through, and the
    store stays locked until the last reference to its server is gone.
    """

    def __init__(self, core: CoreT) -> None:
        self._core: CoreT | None = core

    def __getattr__(self, name: str) -> Any:
        core = self._core
        if core is None:
            raise ServerError("the server has closed the store; join again when it serves the next run")
        return getattr(core, name)

    def end(self) -> None:
        """Let go of the server; calls after this one raise ServerError."""
        self._core = None


class Membership(Generic[CoreT]):
    """A set of workers over one opening of the store. Functions may be called from any thread.

    ``progress`` is what its workers told of theirs.

    Args:
        workers: number of workers that make a step.
        open_core: opens the store for the first worker's manifest.
        gather_seconds: `attach` returns when every worker has attached, and fails the run after this time; None: it
            does not wait for the others.
        worker_return_seconds: the run waits this long for another worker at the place of a lost one; 0: it fails.
        say: called with a sentence when that wait begins and when it ends.
    """

    def __init__(
        self,
        workers: int,
        open_core: Callable[[Manifest], CoreT],
        gather_seconds: float | None = None,
        worker_return_seconds: float = 0.0,
        say: Callable[[str], None] = log.warning,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers: expected at least 1, found {workers}")
        self.workers = workers
        self._open_core = open_core
        self._gather_seconds = gather_seconds
        self._return_seconds = worker_return_seconds
        self._say = say
        self._absent: dict[int, float] = {}  # lost workers that the run waits for: until when
        self._changed = threading.Condition()  # its lock may be taken again by who holds it
        self._opening = threading.Lock()  # apart, because opening a store takes a while and others may leave meanwhile
        self._lent: _Lent[CoreT] | None = None
        self._manifest: Manifest | None = None
        self._first_values = False
        self._admission = Admission(workers)
        self.progress = RunProgress()
        self._lost: list[str] = []
        self._error: LuwuError | None = None
        self._closed = False
        self._uses = 0
        self._asking = 0

    @property
    def joined(self) -> set[int]:
        """Workers that are in the run now."""
        with self._changed:
            return self._admission.joined

    @property
    def missing(self) -> list[int]:
        """Workers that the run still waits for to begin."""
        with self._changed:
            return self._admission.missing

    @property
    def deserted(self) -> bool:
        """True if workers had joined, and all of them have gone."""
        with self._changed:
            return self._admission.deserted

    def went(self, rank: int) -> bool:
        """Return True if the worker of this rank has gone."""
        with self._changed:
            return self._admission.went(rank)

    @property
    def lost(self) -> list[str]:
        """Descriptions of the workers that ended without leaving, one line each."""
        with self._changed:
            return list(self._lost)

    @property
    def opened(self) -> bool:
        """True if the store is open."""
        return self._lent is not None

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened, and its committed step; empty before."""
        return self._ask(lambda core: core.stats(), {})

    @property
    def step(self) -> int:
        """Committed steps; 0 before the store is open."""
        return int(self.stats().get("step", 0))

    def error(self) -> LuwuError | None:
        """Return the first error that the run failed with, or None."""
        failure = self._ask(lambda core: core.failure(), None)
        if self._error is None and failure is not None:
            return ServerError(failure)
        return self._error

    def join(self, rank: int, workers: int) -> None:
        """Take a worker in; raises ConfigError where it does not fit."""
        with self._changed:
            refusal = self._admission.join(rank, workers)
        if refusal:
            raise ConfigError(refusal)

    def attach(self, rank: int, manifest: Manifest) -> bool:
        """Open the store for the first worker's model, which the others must share; True if the store is fresh.

        Returns when there are first values, or to rank 0, which writes them.

        Raises:
            ManifestMismatchError: another model. WorkerLostError, ServerError: the run ended meanwhile. Others: see
            `luwu.errors`.
        """
        self._open_for(manifest)
        if self.is_absent(rank):
            self._wait_for_place(rank)
        with self._changed:
            self._admission.attach(rank)
            returns = self._absent.pop(rank, None) is not None
            self._changed.notify_all()
        if returns:
            self._say(f"another worker {rank} has joined; the run goes on at step {self.step}")
        if self._gather_seconds is not None:
            self._gather(self._gather_seconds)
        if rank != 0:
            self._wait_for_first_values()
        return not self._first_values

    def let_in(self) -> None:
        """Let the workers in `attach` go on: there are first values."""
        with self._changed:
            self._first_values = True
            self._changed.notify_all()

    @contextmanager
    def core(self) -> Iterator[CoreT]:
        """Context manager: the native server for one call, whose end `close` waits for.

        Raises ServerError before `attach`.
        """
        with self._changed:
            lent = self._lent
            if lent is None:
                raise ServerError("the store is not open yet: attach first")
            self._uses += 1
        try:
            yield cast(CoreT, lent)
        finally:
            with self._changed:
                self._uses -= 1
                self._changed.notify_all()

    def leave(self, rank: int) -> None:
        """Remove a worker that leaves on purpose."""
        if not self._closed:
            self._ask(lambda core: core.worker_left(rank), None)
        self._forget(rank)

    def lose(self, rank: int, why: str = "ended without leaving") -> None:
        """Remove a worker that ended without leaving.

        The run waits for another worker at its place, or fails for the others, unless it had failed before.
        """
        if self._keep_place(rank, why):
            return
        message = f"worker {rank} {why}; the run stands at step {self.step}: run again to resume from there"
        with self._changed:
            if self._closed:
                return
            self._lost.append(message)
        self.fail(WorkerLostError(message))
        self._forget(rank)

    def is_absent(self, rank: int) -> bool:
        """Return True if the run waits for another worker at this place."""
        with self._changed:
            return rank in self._absent

    def miss_workers(self) -> None:
        """Fail the run if a lost worker's place has been empty for too long."""
        now = time.monotonic()
        with self._changed:
            late = [rank for rank, end in self._absent.items() if now > end]
        if late:
            self.fail(
                WorkerLostError(
                    f"worker {late[0]} was lost, and no other joined at its place within {self._return_seconds:g} s; "
                    f"the run stands at step {self.step}: run again to resume from there"
                )
            )

    def withdraw(self, rank: int) -> bool:
        """Free the place of a worker that joined and did nothing more: another may join there, and nothing fails.

        Returns False, and does nothing, where the worker has attached.
        """
        with self._changed:
            free = self._admission.withdraw(rank)
            if free:
                self.progress.forget(rank)
            self._changed.notify_all()
            return free

    def fail(self, error: LuwuError) -> None:
        """End the run: every worker that waits gets the error. The first one counts."""
        with self._changed:
            first = self.error()
            if first is None or str(first) == str(error):  # the native core gives the text alone
                first = error
            self._error = first
            self._changed.notify_all()
        self._ask(lambda core: core.worker_lost(str(error)), None)

    def peer_of(self, rank: int) -> str:
        """Return the address of a worker; empty: it is on this machine."""
        return ""

    def look_for_laggards(self, watch: LaggardWatch) -> list[str]:
        """Let a watch look at the workers' progress, and return its news; none once the run has ended.

        While a disk is full, workers wait for that.
        """
        stats = self.stats()
        if not stats or stats.get("waits_for_room") is not None or self._error is not None or self._closed:
            return []
        return self.progress.look(watch, stats["step"], stats["attempts"])

    def wait_for_leaves(self, at_most_seconds: float) -> bool:
        """Return when every worker that joined has left or ended, or the time is over; whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._admission.joined, at_most_seconds)

    def stop_waiting(self) -> None:
        """Send the workers away that wait in `attach`; nothing fails or is lost from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self, at_most_seconds: float = 0.0) -> None:
        """End the native server: the store stands at the last step that was answered. Waits for calls under way.

        Raises:
            StoreError, StoreSpaceError: that step could not be written; the store may stand at the step before.
        """
        self.stop_waiting()
        with self._changed:
            self._changed.wait_for(lambda: not self._uses, at_most_seconds)
            lent = self._lent
        if lent is None:
            return
        try:
            cast(CoreT, lent).close()
        finally:
            with self._changed:
                self._lent = None
                self._changed.wait_for(lambda: not self._asking)
            lent.end()

    def _ask(self, question: Callable[[CoreT], AnswerT], otherwise: AnswerT) -> AnswerT:
        """Ask the native server, if there is one, a question that is answered at once; `close` waits for that."""
        with self._changed:
            self._asking += 1
            lent = self._lent
        try:
            return otherwise if lent is None else question(cast(CoreT, lent))
        finally:
            with self._changed:
                self._asking -= 1
                self._changed.notify_all()

    def _open_for(self, manifest: Manifest) -> None:
        with self._opening:
            if self._lent is None:
                lent = _Lent(self._open_core(manifest))
                with self._changed:
                    self._lent, self._manifest = lent, manifest
                    self._first_values = cast(CoreT, lent).initialised
                return
        assert self._manifest is not None
        difference = first_difference(manifest, self._manifest, with_chunks=self._gather_seconds is not None)
        if difference is not None:
            raise ManifestMismatchError(
                f"this worker's model is not that of the workers before it: {difference}; run one script on all"
            )

    def _keep_place(self, rank: int, why: str) -> bool:
        """Keep a lost worker's place for another one; False: the run does not wait for any, or has ended."""
        with self._changed:
            if not self._return_seconds or not self._first_values or self._closed or self.error() is not None:
                return False
            if rank not in self._admission.joined:
                return False
            self._admission.lose(rank)
            self._absent.setdefault(rank, time.monotonic() + self._return_seconds)
            self.progress.forget(rank)
            self._changed.notify_all()
        self._ask(lambda core: core.lose_worker(rank), None)
        self._say(f"worker {rank} {why}; the run waits for another worker {rank} {until(self._return_seconds)}")
        return True

    def _wait_for_place(self, rank: int) -> None:
        free = False
        while not free:
            self._raise_if_ended()
            with self.core() as core:
                free = core.wait_for_place(rank, _LOOK_SECONDS)
        self._raise_if_ended()

    def _gather(self, at_most_seconds: float) -> None:
        with self._changed:
            together = self._changed.wait_for(
                lambda: not self._admission.missing or self._error is not None or self._closed, at_most_seconds
            )
        if not together:
            missing = ", ".join(str(rank) for rank in self.missing)
            self.fail(WorkerLostError(f"worker {missing} of {self.workers} did not come within {at_most_seconds:g} s"))
        self._raise_if_ended()

    def _wait_for_first_values(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._first_values or self._error is not None or self._closed)
        if not self._first_values:
            self._raise_if_ended()

    def _raise_if_ended(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error))
        if self._closed:
            raise ServerError("the server ended before the run began; run again")

    def _forget(self, rank: int) -> None:
        with self._changed:
            self._admission.go(rank)
            self.progress.forget(rank)
            self._changed.notify_all()
