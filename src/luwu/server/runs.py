"""Runs over the same store, one after another: joins, ends, and the begin of the next."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.core.errors import ConfigError, LuwuError, ServerError, WorkerLostError
from luwu.core.manifest import Manifest
from luwu.core.room import RoomWatch, SayRoom, log_room
from luwu.server.laggards import look_for_laggards, overdue, why_overdue
from luwu.server.launchers import NO_LAUNCHERS, Launchers
from luwu.server.membership import look_for_missing
from luwu.server.participants import LauncherMember, Participant, Participants
from luwu.server.progress import LaggardWatch
from luwu.server.run import ClaimStore, OpenCore, Run, Terms, Worker, claim_nothing
from luwu.server.service import Attached, loss_scale_of
from luwu.server.status import Status
from luwu.server.switches import SwitchMembers
from luwu.server.topology import NOWHERE, PacketOrigin, PlanTopology, SwitchMember

log = logging.getLogger(__name__)


class Runs:
    """Keeps a run open for workers, and opens the next when it has ended. Functions may be called from any thread.

    Args:
        workers: number of workers of every run, or the most of them.
        switches: number of switches that must have joined before a run begins.
        open_core: opens the store for a manifest, a job, this server's share of it, and a number of workers.
        advertise: host of the data plane; empty: where the server was reached.
        plan, timeouts: what plans the tree of a run; the network's timeouts.
        plan_failure: returns why a part that the plan started beside the core has failed; None: it has not.
        say_room: called when the store waits for room on its disk, and when it goes on.
        gives_up: tells whether a run that ends is to wait no longer for room on a full disk.
        step_at_rest: reads the store's committed step while it is not open.
        step_deadline_seconds: a worker that others wait for without progress for so long counts as lost; 0: none does.
        fewest, worker_return_seconds: see `Admission` and `Membership`.
        launchers: what is done for launchers on other machines.
    """

    def __init__(
        self,
        workers: int,
        switches: int,
        open_core: OpenCore,
        advertise: str,
        plan: PlanTopology,
        timeouts: Timeouts,
        plan_failure: Callable[[], str | None] = lambda: None,
        say_room: SayRoom = log_room,
        gives_up: Callable[[], bool] = lambda: False,
        step_at_rest: Callable[[], int] = lambda: 0,
        worker_return_seconds: float = 0.0,
        step_deadline_seconds: float = 0.0,
        fewest: int | None = None,
        launchers: Launchers = NO_LAUNCHERS,
    ) -> None:
        self._launchers = launchers
        self._plan_failure = plan_failure
        self._step_deadline_seconds = step_deadline_seconds
        self._make_run = lambda: Run(workers, open_core, timeouts, step_at_rest, worker_return_seconds, fewest)
        self._advertise = advertise
        self._plan = plan
        self._timeouts = timeouts
        self.participants = Participants()
        self._changed = threading.Condition()
        self._switches = SwitchMembers(switches, self._changed, self.participants, timeouts)
        self._run = self._make_run()
        self._closing = False
        self._failures = 0  # of the runs that were renewed
        self._failure: LuwuError | None = None  # of the last of them that failed
        self._writing = False  # what a run that has ended has left in memory
        self._gone: queue.SimpleQueue[Participant | None] = queue.SimpleQueue()
        self._status = Status(timeouts.status_seconds, timeouts.gather_seconds)
        self._room_watch = RoomWatch(say_room, gives_up)
        self._laggard_watch = LaggardWatch(self._timeouts, self._step_deadline_seconds)
        self._thread = threading.Thread(target=self._tend, name="luwu-runs", daemon=True)
        self._thread.start()

    @property
    def run(self) -> Run:
        """The run that is open or under way."""
        with self._changed:
            return self._run

    @property
    def failures(self) -> tuple[int, LuwuError | None]:
        """The number of runs that have failed, and the error of the last one."""
        with self._changed:
            failed = self._run.failed_at is not None  # a core that closes tells an error, too
            return self._failures + failed, self._run.error() if failed else self._failure

    def join_worker(self, rank: int, workers: int, peer: str) -> Worker:
        """Take a worker into the run, waiting for the one before it to end, and for one of its rank to watch or end.

        Raises:
            ConfigError: the rank or number of workers does not fit. ServerError: the server closes, or still writes.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or (self._is_open(rank) and not self._is_unsure(rank)),
                self._timeouts.rejoin_seconds,
            )
            if self._run.vacancies.seconds > 0:  # its machine may be known as lost before the worker that ran there
                self._changed.wait_for(
                    lambda: self._closing or rank not in self._run.joined, self._timeouts.close_seconds
                )
            if self._closing:
                raise ServerError("the server is closing; start it again")
            if self._writing:
                raise ServerError(
                    "the server still puts the last steps of the run before on its disk; join again when it has"
                )
            if not self._is_open(rank):
                raise ConfigError(
                    f"worker {rank} has left the run, or that has failed, and {self._present()} still in it; "
                    "join again when they have ended, or end them and start all workers again"
                )
            worker = self._run.add(rank, workers, peer)
            self.participants.add(worker)
        log.info("joined %s job=%x peer=%s of=%d", worker.name, worker.run.job, peer, workers)
        return worker

    def join_switch(self, switch: SwitchMember) -> None:
        """Take a switch in; raises ConfigError if there is one of its name elsewhere."""
        with self._changed:
            self._switches.join(switch, self._run)

    def join_launcher(self, launcher: LauncherMember) -> None:
        """Take in a launcher on another machine; raises ConfigError where this server's owner has no use for it."""
        self._launchers.join(launcher)
        self.participants.add(launcher)
        log.info("joined %s peer=%s", launcher.name, launcher.peer)

    def attach(
        self,
        worker: Worker,
        manifest: Manifest,
        terms: Terms,
        place: PacketOrigin = NOWHERE,
        claim: ClaimStore = claim_nothing,
    ) -> Attached:
        """Open the store for a worker's model; return when all workers have attached, see `Membership.attach`."""
        run = worker.run
        run.note_place(worker, place)
        returns = worker.rank in run.vacancies
        try:
            run.agree(terms)
            fresh = run.attach(worker.rank, manifest, worker.tenure)
            first, word = run.claim(claim)
            switches = self._switches.wait(run, lambda: run.over or self._closing)
            run.send_topology(switches, self._advertise, self._plan)
            with run.answering(worker):
                if returns:
                    run.replace_in_tree(worker, self.present_switches, self._advertise, self._plan)
                token = run.admit(worker.rank)
        except LuwuError as error:
            stays = not returns and run.holds(worker.rank, worker.tenure)
            if stays and run.error() is None and not self._closing:
                run.fail(type(error)(f"{worker.name} could not attach: {error}"))
            raise
        stats = run.stats()
        counts = {name: int(stats[name]) for name in ("step", "attempts", "rolled_back")}
        return Attached(fresh, counts, loss_scale_of(stats), token, first, word)

    def leave(self, participant: Participant, failure: str = "") -> None:
        """Let a participant leave on purpose, or because of its own failure."""
        participant.left, participant.failure = not failure, failure
        self._end(participant)
        self._gone.put(None)  # its run may have ended with it: look now

    def gone(self, participant: Participant) -> None:
        """Note that a participant's watch has ended. It must not take long."""
        self._gone.put(participant)

    def watches(self, participant: Participant) -> bool:
        """Note that a participant watches now; False if it did before."""
        with self._changed:
            before, participant.watched = participant.watched, True
            self._changed.notify_all()
            return not before

    def begin_close(self) -> None:
        """Tell all participants that the server ends, and stop waiting for anything."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._gone.put(None)
        self._thread.join()
        self._run.stop_waiting()
        message = f"the server was stopped; the store stands at step {self._run.step}: start it and run again to resume"
        for participant in self.participants.all():
            self.participants.remove(participant, ServerError(message))
            participant.tell(pb.Event(closing=pb.Closing(message=message)))
            participant.end_watch()

    def finish_close(self) -> None:
        """Close the store.

        Raises:
            StoreError, StoreSpaceError: a step that was answered could not be written.
        """
        self._run.close(self._timeouts.close_seconds, self._room_watch.goes_on)

    def _is_open(self, rank: int) -> bool:
        return not self._run.over and not self._run.went(rank)

    def _is_unsure(self, rank: int) -> bool:
        """Return True while the worker of this rank may be gone: it has not watched yet, or its end is under way."""
        if (before := self._run.people.get(rank)) is None:
            return False
        return rank in self._run.joined if before.ended else not before.watched

    def _present(self) -> str:
        joined = sorted(self._run.joined)
        return f"{', '.join(f'worker {rank}' for rank in joined) or 'nobody'} {'is' if len(joined) < 2 else 'are'}"

    def present_switches(self) -> list[SwitchMember]:
        """Return the switches that have joined, in that order."""
        return self._switches.present

    def _end(self, participant: Participant) -> None:
        with self._changed:
            if participant.ended or self._closing:
                return
            participant.ended = True
        if isinstance(participant, Worker):
            self._end_worker(participant)
        elif isinstance(participant, SwitchMember):
            self._switches.end(participant, self._run)
        elif isinstance(participant, LauncherMember):
            self._launchers.go(participant)
            self.participants.remove(participant, WorkerLostError(f"{participant.name} {participant.end}; join again"))
        participant.end_watch()
        with self._changed:
            self._changed.notify_all()

    def _end_worker(self, worker: Worker) -> None:
        run = worker.run
        if not worker.watched and not worker.left and not run.over and run.withdraw(worker.rank):
            self.participants.remove(worker, WorkerLostError(f"{worker.name} did not watch its run; join again"))
            log.info("withdrew %s job=%x peer=%s why='did not watch'", worker.name, run.job, worker.peer)
            return
        if worker.left:
            run.leave(worker.rank)
            self.participants.remove(worker, ServerError(f"{worker.name} has left its run; join again"))
            log.info("left %s job=%x step=%d", worker.name, run.job, run.step)
            return
        log.log(
            logging.INFO if run.over else logging.ERROR,
            "lost %s job=%x peer=%s why=%r", worker.name, run.job, worker.peer, worker.end,
        )  # fmt: skip
        run.lose(worker.rank, worker.end)
        self.participants.remove(
            worker, run.error() or WorkerLostError(f"{worker.name} {worker.end}, and counts as lost; join again")
        )

    def _end_overdue(self, worker: Worker, why: str) -> None:
        """End a worker that is there, and tell it the reason, which it reads when it goes on."""
        worker.failure = f"it {why}"
        message = f"{worker.name} {why}, and counts as lost; join again"
        worker.tell(pb.Event(failure=pb.Failure(error=WorkerLostError.__name__, message=message)))
        self._end(worker)
        worker.run.notify(pb.Notice(fenced=worker.rank))

    def _tend(self) -> None:
        while not self._closing:
            try:
                with suppress(queue.Empty):
                    participant = self._gone.get(timeout=self._timeouts.look_seconds)
                    if participant is not None:
                        self._end(participant)
                self._look()
            except Exception:  # whatever it is, the server must go on looking
                log.exception("looking after the run failed")

    def _look(self) -> None:
        run, now = self._run, time.monotonic()
        error = run.error()
        if error is not None and run.failed_at is None:
            run.fail(error)
        if run.begun and not run.over and (why := self._plan_failure()) is not None:
            run.fail(ServerError(f"the server's own switch ended: {why}; run again"))
        self._switches.miss(run, now)
        look_for_missing(run)
        for participant in self.participants.all():
            if not participant.watched and now - participant.joined_at > self._timeouts.watch_seconds:
                self._end(participant)
        if run.over and (not run.joined or now - (run.failed_at or now) > self._timeouts.drain_seconds):
            self._renew()
        self._status.look(run, now, self._switches.missing)
        self._room_watch.look(run.stats())
        for text in look_for_laggards(run, self._laggard_watch):
            log.warning("slow job=%x %s", run.job, text)
            run.notify(pb.Notice(text=text))
        for laggard in overdue(run, self._step_deadline_seconds):
            self._end_overdue(run.people[laggard.rank], why_overdue(laggard, self._step_deadline_seconds))

    def _renew(self) -> None:
        """End the run for good; the store is free for the next one."""
        run, step = self._run, self._run.step
        ended = run.error() or ServerError("the run has ended; join again")
        for worker in run.people.values():
            if not worker.ended:
                worker.ended = True
                self.participants.remove(worker, ended)
                worker.end_watch()
        self._writing = True
        failures, failure = self.failures
        try:
            run.close(self._timeouts.close_seconds, self._room_watch.goes_on)
        except LuwuError as error:
            log.error("step=%d was answered and could not be written: %s", step, error)
            failures, failure = failures + 1, error
        with self._changed:
            self._switches.forget_lost()
            self._failures, self._failure = failures, failure
            self._run = self._make_run()
            self._writing = False
            self._laggard_watch = LaggardWatch(self._timeouts, self._step_deadline_seconds)
            self._changed.notify_all()
        written = run.stats().get("bytes_written", 0)
        log.info("ended job=%x step=%d written=%d; ready for the next workers", run.job, step, written)
