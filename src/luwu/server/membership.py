"""The workers of one run: joins, the model that opened the store, and departures. Every kind of server has it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from luwu.control.timeouts import TIMEOUTS
from luwu.control.waiting import until
from luwu.core.errors import ConfigError, LuwuError, ManifestMismatchError, ServerError, WorkerLostError
from luwu.core.manifest import Manifest, first_difference
from luwu.core.room import RoomWait
from luwu.server.admission import Admission
from luwu.server.balance import RunBalance
from luwu.server.lent import CoreT, Lent, ReturnCore, end_core
from luwu.server.progress import RunProgress
from luwu.server.tracing import RunTracing
from luwu.server.vacancies import Vacancies

log = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT")


class Membership(Generic[CoreT]):
    """A set of workers over one opening of the store. Functions may be called from any thread.

    ``progress`` is what its workers told of theirs. ``balance`` divides their batches. ``tracing`` has its traces.
    ``vacancies`` are the places of lost workers that it keeps.
    ``lost`` are the workers whose end failed it, one line each.

    Args:
        workers: number of workers that make a step, or the most of them.
        open_core: opens the store for the first worker's manifest.
        gather_seconds: `attach` returns when every worker has attached, and fails the run after this time; None: it
            does not wait for the others.
        worker_return_seconds: the run waits this long for another worker at the place of a lost one; 0: it fails.
        say: called with a sentence when that wait begins and when it ends.
        fewest: see `Admission`.
        another_comes: tells whether anybody starts another worker in the place of one that is lost now.
    """

    def __init__(
        self,
        workers: int,
        open_core: Callable[[Manifest], CoreT],
        gather_seconds: float | None = None,
        worker_return_seconds: float = 0.0,
        say: Callable[[str], None] = log.warning,
        fewest: int | None = None,
        another_comes: Callable[[], bool] = lambda: True,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers: expected at least 1, found {workers}")
        self._open_core = open_core
        self._gather_seconds = gather_seconds
        self.vacancies = Vacancies(worker_return_seconds)
        self._another_comes = another_comes
        self._say = say
        self._changed = threading.Condition()  # its lock may be taken again by who holds it
        self._opening = threading.Lock()  # apart, because opening a store takes a while and others may leave meanwhile
        self._lent: Lent[CoreT] | None = None
        self._last_stats: dict[str, Any] = {}
        self.launcher_wait: RoomWait | None = None  # a pause of the process that has the run folder
        self._manifest: Manifest | None = None
        self.block_names: tuple[str, ...] = ()
        self._first_values = False
        self._gathered = False  # all workers were there once: one that comes for a lost one waits for no other
        self._admission = Admission(workers, fewest)
        self.progress = RunProgress()
        self.balance = RunBalance()
        self.tracing = RunTracing()
        self.lost: list[str] = []
        self._error: LuwuError | None = None
        self._closed = False
        self._uses = 0
        self._asking = 0

    @property
    def workers(self) -> int:
        """Workers that make a step; the most of them while nobody has joined."""
        with self._changed:
            return self._admission.workers

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
    def opened(self) -> bool:
        """True if the store is open."""
        return self._lent is not None

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened, and its committed step; empty before, and the last ones after `close`."""
        return self._ask(lambda core: core.stats(), self._last_stats)

    @property
    def step(self) -> int:
        """Committed steps; 0 before the store is open."""
        return int(self.stats().get("step", 0))

    def error(self) -> LuwuError | None:
        """Return the first error that the run failed with, or None."""
        return self._error or self._ask(lambda core: core.failure(), None)

    def join(self, rank: int, workers: int) -> int:
        """Take a worker in, and return its tenure, see `Admission`; raises ConfigError where it does not fit."""
        with self._changed:
            refusal = self._admission.join(rank, workers)
            if refusal:
                raise ConfigError(refusal)
            return self._admission.tenure(rank)

    def holds(self, rank: int, tenure: int) -> bool:
        """Return True while the worker with this tenure is in the run at this place."""
        with self._changed:
            return self._admission.holds(rank, tenure)

    def attach(self, rank: int, manifest: Manifest, tenure: int) -> bool:
        """Open the store for the first worker's model, which the others must share; True if the store is fresh.

        Returns when there are first values, or to rank 0, which writes them.

        Raises:
            ManifestMismatchError: another model. WorkerLostError, ServerError: the run ended meanwhile. Others: see
            `luwu.errors`.
        """
        self._open_for(manifest)
        if rank in self.vacancies:
            self._wait_for_place(rank, tenure)
        with self._changed:
            present = self._admission.attach(rank, tenure)
            returned = present and self.vacancies.fill(rank)
            if present:
                self.progress.expect(rank)
            self._changed.notify_all()
        if not present:
            raise lost_meanwhile(rank)
        if returned:
            self._say(f"another worker {rank} has joined; the run goes on at step {self.step}")
        if self._gather_seconds is not None and not self._gathered:
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

    def lose(self, rank: int, why: str = "ended without leaving") -> int | None:
        """Remove a worker that ended without leaving.

        The run waits for another worker at its place, or fails for the others, unless it had failed before.

        Returns the number of attempts that ended before the one that is void now; None: none is.
        """
        waits = self.vacancies.seconds > 0 and self._another_comes()
        if waits and self._first_values and not self._closed and self.error() is None:
            voided = self._ask(lambda core: cast(ReturnCore, core).lose_worker(rank), None)
            self.tracing.lose(rank)
            with self._changed:  # not before: whoever joins now finds the place as it is to be
                self._admission.lose(rank)
                end = until(self.vacancies.seconds)
                self.vacancies.keep(rank, f"worker {rank} {why}; the run waits for another worker {rank} {end}")
                self.progress.forget(rank)
                self.balance.forget(rank)
                self._changed.notify_all()
            return voided
        error = lost_at(f"worker {rank} {why}", self.step)
        with self._changed:
            if self._closed:
                return None
            self.lost.append(str(error))
        self.fail(error)
        self._forget(rank)
        return None

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
            self._error = self.error() or error
            self._changed.notify_all()
        self._ask(lambda core: core.fail_run(str(error)), None)

    def peer_of(self, rank: int) -> str:
        """Return the address of a worker; empty: it is on this machine."""
        return ""

    def wait_for_leaves(self, at_most_seconds: float) -> bool:
        """Return when every worker that joined has left or ended, or the time is over; whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._admission.joined, at_most_seconds)

    def stop_waiting(self) -> None:
        """Send the workers away that wait in `attach`; nothing fails or is lost from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(
        self, at_most_seconds: float = 0.0, goes_on: Callable[[dict[str, Any]], bool] = lambda stats: True
    ) -> None:
        """End the native server: the store stands at the last step that was answered.

        Args:
            at_most_seconds: the longest wait for calls under way.
            goes_on: see `luwu.server.lent.end_core`.

        Raises:
            StoreError, StoreSpaceError: that step could not be written; the store stands at the last commit point.
        """
        self.stop_waiting()
        with self._changed:
            self._changed.wait_for(lambda: not self._uses, at_most_seconds)
            lent = self._lent
        if lent is None:
            return
        try:
            end_core(cast(CoreT, lent), goes_on)
        finally:
            with self._changed:
                self._last_stats = lent.stats()
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
                lent = Lent(self._open_core(manifest))
                with self._changed:
                    self._lent, self._manifest = lent, manifest
                    self.block_names = tuple(block.name for block in manifest.blocks)
                    self._first_values = cast(CoreT, lent).initialised
                return
        assert self._manifest is not None
        difference = first_difference(manifest, self._manifest, with_chunks=self._gather_seconds is not None)
        if difference is not None:
            raise ManifestMismatchError(
                f"this worker's model is not that of the workers before it: {difference}; run one script on all"
            )

    def _wait_for_place(self, rank: int, tenure: int) -> None:
        free = False
        while not free:
            self.raise_if_ended()
            if not self.holds(rank, tenure):
                raise lost_meanwhile(rank)
            with self.core() as core:
                free = cast(ReturnCore, core).wait_for_place(rank, TIMEOUTS.look_seconds)
        self.raise_if_ended()

    def _gather(self, at_most_seconds: float) -> None:
        with self._changed:
            together = self._changed.wait_for(
                lambda: not self._admission.missing or self._error is not None or self._closed, at_most_seconds
            )
        if not together:
            missing = ", ".join(str(rank) for rank in self.missing)
            self.fail(WorkerLostError(f"worker {missing} of {self.workers} did not come within {at_most_seconds:g} s"))
        self.raise_if_ended()
        self._gathered = True

    def _wait_for_first_values(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._first_values or self._error is not None or self._closed)
        if not self._first_values:
            self.raise_if_ended()

    def raise_if_ended(self) -> None:
        """Raise the error that the run failed with, or ServerError when it is closed."""
        if self._error is not None:
            raise type(self._error)(str(self._error))
        if self._closed:
            raise ServerError("the server ended before the run began; run again")

    def _forget(self, rank: int) -> None:
        with self._changed:
            self._admission.go(rank)
            self.progress.forget(rank)
            self._changed.notify_all()


def look_for_missing(run: Membership[Any]) -> None:
    """Act on what is missing: workers whose places stay empty are told of, and in the end fail the run.

    A trace whose asker has gone is forgotten.
    """
    run._ask(run.tracing.forget, None)
    if run.error() is not None:
        return
    for words in run.vacancies.news():
        run._say(words)
    if why := run.vacancies.overdue():
        run.fail(lost_at(why, run.step))


def lost_meanwhile(rank: int) -> WorkerLostError:
    """Return the error of a call whose worker was lost while the call was under way."""
    return WorkerLostError(f"worker {rank} was lost while it waited for an answer; join again")


def lost_at(why: str, step: int) -> WorkerLostError:
    """Return the error of a run that a lost worker ends at a committed step."""
    return WorkerLostError(f"{why}; the run stands at step {step}: run again to resume from there")
