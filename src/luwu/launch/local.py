"""A whole run on this machine: an embedded server here, or one on the network, and worker processes beside it.

This process never imports torch: the workers bring their own, and it stays as small as the server is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from luwu.control.timeouts import PATIENCE_SECONDS
from luwu.control.waiting import until
from luwu.core.errors import LuwuError, ServerError, WorkerLostError
from luwu.core.room import Room, RoomWait, WaitStoppedError
from luwu.core.units import bytes_text
from luwu.core.words import counted
from luwu.data.corpus import Corpus
from luwu.launch.checks import check_memory
from luwu.launch.claiming import claim_here, find_run_id, make_claim
from luwu.launch.elsewhere import ServerElsewhere
from luwu.launch.events import log_event
from luwu.launch.exposing import expose_run
from luwu.launch.folder import RunFolder
from luwu.launch.interrupts import Interrupts
from luwu.launch.job import CredentialFiles, Job, ServerAccess
from luwu.launch.last_attempts import make_room
from luwu.launch.logged_metrics import LoggedMetrics
from luwu.launch.machines import Machines, files_of
from luwu.launch.outcome import Outcome
from luwu.launch.preparing import prepare_corpus
from luwu.launch.processes import Ended, WorkerProcesses, ended_from_outside
from luwu.launch.report_queue import ReportQueue
from luwu.launch.reports import room_reporter, room_wait
from luwu.launch.restarts import Restarts
from luwu.launch.run_reports import Report, RunReports
from luwu.launch.settings import Settings
from luwu.observe.display import Display
from luwu.server.server import LocalServer
from luwu.store.run_record import Claim, Counts

if TYPE_CHECKING:
    from luwu.launch.exposing import Server
    from luwu.launch.listening import ListeningServer

SERVER = -1
"""Rank that stands for the server in a report."""

GRACE_SECONDS = 15.0
"""Seconds that the other workers may take to end by themselves after one failed."""

NO_CREDENTIALS = CredentialFiles()
"""Those of the environment, if it has any."""


class LocalRun:
    """Runs a job once: start or resume, train, evaluate.

    Args:
        settings: of the run; memory and stores are the server's own where it is elsewhere.
        folder: the folder for the run's files.
        display: shows the run to the user.
        server: a server on the network; None: this process embeds one.
        takes_weights: the run is a new one, and goes on from the weights of another run's store.
        restarts: the restarts that the job has left; None: as the settings have it.
        credentials: those of workers on other machines, where the run listens for such.

    Attributes:
        ended: workers that failed and ended the run.
        taken: the workers' reports, and how far the run has come.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        display: Display,
        server: ServerAccess | None = None,
        *,
        takes_weights: bool = False,
        restarts: Restarts | None = None,
        credentials: CredentialFiles = NO_CREDENTIALS,
    ) -> None:
        self.ended: list[Ended] = []
        self._asked_to_stop = self._lost_at_end = False
        self._losses = 0  # of machines, before the first worker had a result
        self._remote = self._access = server
        self._listening: ListeningServer | None = None
        self._credentials = credentials
        self._takes_weights = takes_weights
        self._claim: Claim | None = None
        self._first: Counts | None = None  # the store's counts when the run began on it
        self._folder = folder
        self._display = display
        self.taken = RunReports(
            settings, folder, display, lambda: self._server,
            server_here=server is None, takes_weights=takes_weights,
        )  # fmt: skip
        settings = self._settings = self.taken.settings
        self._stages = self.taken.stages
        self._reports = ReportQueue(settings.run.workers)
        self._paused: set[int] = set()
        self._restarts = restarts or Restarts(settings.run.restarts)
        self._restarts.may_begin = False
        self._machines = Machines(settings.ranks_elsewhere, folder, self._reports.put, self._reports.say)
        self._handlers: dict[str, Callable[[int, Report], None]] = {
            "start": self._on_start,
            "step": self.taken.step,
            "say": lambda rank, report: None if rank else self._display.say(report["text"]),
            "stage": lambda rank, report: self._stages.show(report["text"], report["detail"]),
            "room": self._on_room,
            "stopped": lambda rank, report: self.outcome.stop(),
            "validated": self.taken.validated,
            "fenced": lambda rank, report: self._on_fenced(report["rank"]),
            "result": self._on_result,
        }

    @property
    def outcome(self) -> Outcome:
        """The end of the run, or how far it has come."""
        return self.taken.outcome

    @property
    def waits_again(self) -> bool:
        """True if the run has failed because workers of another machine were lost: it can wait for other machines."""
        killed_here = any(each.status < 0 for each in self.ended)
        lost = self._listening is not None and isinstance(self._listening.failure(), WorkerLostError)
        return (lost or self._lost_at_end) and not killed_here and self._machines.failure is None

    def run(self, interrupts: Interrupts | None = None) -> Outcome:
        """Train and evaluate, or stop at a commit when interrupted.

        Args:
            interrupts: counts Ctrl-C also before and after the run; None: the run counts by itself.

        Raises:
            LuwuError: what a worker or the server failed with; the run stands at its last commit.
        """
        counting = Interrupts() if interrupts is None else nullcontext(interrupts)
        with counting as interrupts:
            server = self._server = self._serve(interrupts)
            try:
                place = self._settings.run.metrics
                with server, expose_run(place, self.taken, server, self._restarts, self._display.say):
                    self._run_on(server, interrupts)
            finally:
                self.taken.end()
            self._stages.show("stopped" if self.outcome.stopped else "done")
            if self.outcome.stopped:
                self.outcome.step = self._step_of_store(self.outcome.step)
        return self.outcome

    def _run_on(self, server: Server, interrupts: Interrupts) -> None:
        seconds = self._settings.run.disk_full_wait_seconds
        self._room = Room(seconds, self.taken.pause_here, lambda: interrupts.count > 0)
        try:
            self._run(interrupts)
        except WaitStoppedError:
            self.outcome.stopped = True
            self._machines.end(None, stopped=True)
        except LuwuError as error:
            if not self.waits_again:
                self._machines.end(error, stopped=False)
            raise
        else:
            self._machines.end(None, stopped=self.outcome.stopped)
        finally:
            self._begin_close(interrupts)
        server.close()  # while its figures are still told

    def _begin_close(self, interrupts: Interrupts) -> None:
        """Take no more reports, and show that the server, which is closed next, puts its last steps on the disk."""
        self._interrupts_before_close = interrupts.count
        self._reports.end()
        if self._server.stats().get("unwritten", 0) > 1:
            self._stages.show("putting the last steps on the disk")

    def _step_of_store(self, otherwise: int) -> int:
        """Return the run's step by its store, which may be ahead of the reports; `otherwise` if it is elsewhere."""
        stats = self._server.stats()
        return int(stats["step"]) - self._first.step if "step" in stats and self._first is not None else otherwise

    def _run(self, interrupts: Interrupts) -> None:
        self._write_job()
        self._stages.show("reading the text")
        self.outcome.corpus = prepare_corpus(
            self._folder, self._show_reading, lambda: interrupts.count > 0, self.taken.pause_here, self._room
        )
        if self.outcome.corpus is None:
            self.outcome.stopped = True
            return
        if self._remote is None:
            check_memory(self._settings, self.outcome.corpus.vocabulary, self._folder)
        self._make_claim(self.outcome.corpus)
        metrics = LoggedMetrics(self._settings, self._folder, self._room, self._display.say)
        self.taken.open(metrics)
        try:
            if self._wait_for_machines(interrupts):
                self._supervise(interrupts)
        finally:
            metrics.close()

    def _serve(self, interrupts: Interrupts) -> Server:
        run = self._settings.run
        if self._remote is not None:
            return ServerElsewhere(self._folder.path)
        if run.listen:
            from luwu.launch.listening import ListeningServer  # brings gRPC

            self._listening = ListeningServer(
                self._settings, self._folder, self._credentials, self._machines, self._on_room_of_server,
                partial(self._gives_up, interrupts), self._reports.say,
            )  # fmt: skip
            self._access = self._listening.access
            return self._listening
        # Made here and not by `session`: the launcher is no worker, so there is no session that could own the server.
        return LocalServer(
            self._folder.path,
            list(run.stores),
            run.memory,
            run.workers,
            snapshots=run.snapshots,
            on_open=self._on_open,
            disk_full_wait_seconds=run.disk_full_wait_seconds,
            commit_points=run.commit_points,
            aggregate=run.aggregate,
            on_room=self._on_room_of_server,
            on_slow=self._reports.say,
            patience=self._restarts.patience(run.step_deadline_seconds),
            gives_up=partial(self._gives_up, interrupts),
        )

    def _gives_up(self, interrupts: Interrupts) -> bool:
        """Return True where the user interrupts the run again while its server closes."""
        return self._reports.over and interrupts.count > self._interrupts_before_close

    def _make_claim(self, corpus: Corpus) -> None:
        """Make the run's id and claim on its store; workers get the claim where they reach the server by network."""
        store = self._folder.stores(self._settings)[0] if self._remote is None else None
        run_id = find_run_id(self._settings, self._folder, store)
        self._folder.save_id(run_id, self._room)
        claim = make_claim(self._settings, self._folder, run_id, corpus, takes_weights=self._takes_weights)
        self._claim = replace(claim, steps_made=self.outcome.step)
        if self._access is not None:
            self._write_job(self._claim.to_json())

    def _on_open(self, counts: Counts) -> Counts:
        """Claim the store once this process's server has opened it; called in a thread of the server."""
        assert self._claim is not None
        self._first = claim_here(self._claim, self._folder.stores(self._settings)[0], self._reports.say)(counts)
        return self._first

    def _write_job(self, claim: str | None = None) -> None:
        self._job = Job(
            settings=self._settings,
            folder=str(self._folder.path),
            socket_path=str(self._server.socket_path) if self._access is None else None,
            launcher_pid=os.getpid(),
            validated_step=self.taken.validated_step,
            server=self._access,
            claim=claim,
        )
        self._job.write(self._folder.job_path, self._room)
        for rank in range(self._settings.run.workers):
            path = self._folder.attempts_path(rank)
            self._room.retry(partial(make_room, path), path)

    def _show_reading(self, done: float, total: float) -> None:
        self._stages.show("reading the text", f"{100 * done / total:.0f} % of {bytes_text(total)}")

    def _wait_for_machines(self, interrupts: Interrupts) -> bool:
        """Return when launchers on other machines have all of their workers; False: interrupted, nothing is left."""
        if self._listening is not None:
            self._machines.publish(self._job, files_of(self._folder, self._settings))
            self._display.say(self._listening.join_words)
        while not self._machines.begun:
            if interrupts.count:
                self.outcome.stopped = True
                return False
            missing = counted(self._machines.missing, "worker")
            self._stages.show(f"waiting for other machines to join, with {missing}")
            self._take_reports()
        return True

    def _supervise(self, interrupts: Interrupts) -> None:
        self._job.stop_path.unlink(missing_ok=True)
        self._stages.show("starting workers")
        ranks = self._settings.ranks_here
        workers = WorkerProcesses(self._folder, self._settings.run.workers, self._reports.put, self._room, ranks)
        try:
            while self._goes_on(workers):
                self._take_reports()
                for text in self._restarts.look(workers, may_start=not self._asked_to_stop):
                    self._display.say(text)
                    log_event(self._folder, text)
                if interrupts.count > 1 or (interrupts.count and not self._can_commit()):
                    self.outcome.stopped = True
                    return
                if interrupts.count and not self._asked_to_stop:
                    self._asked_to_stop = True
                    self._stages.show("stopping at the next commit; press Ctrl-C again to stop at once")
                    workers.ask_to_stop()
                    self._machines.ask_to_stop()
            if workers.failed():
                self._fail(workers, interrupts)
                return
            self._take_last_reports()
        finally:
            workers.kill()
            self._job.stop_path.unlink(missing_ok=True)
        if not self.outcome.stopped:
            self.taken.conclude()

    def _can_commit(self) -> bool:
        """Return True where a commit can come soon at which the run stops, because worker 0 asks for it."""
        asks = 0 in self._settings.ranks_here or self._machines.runs(0)
        return asks and self.taken.training and not self._paused and not self._machines.vacant

    def _goes_on(self, workers: WorkerProcesses) -> bool:
        """Return True while a worker runs, here or elsewhere, or may be started again.

        Raises:
            LuwuError: what a worker on another machine has failed with, or the server where no worker is here.
        """
        if self._machines.failure is not None:
            raise self._machines.failure
        if self._restarts.gives_up(workers, may_start=not self._asked_to_stop):
            return False
        if self.taken.results and (self._machines.vacant or self._machines.losses > self._losses):
            raise self._lose_at_end()
        if self._listening is not None and not self._settings.ranks_here and (error := self._listening.failure()):
            raise error
        return workers.running() or bool(workers.failed()) or self._machines.unfinished

    def _fail(self, workers: WorkerProcesses, interrupts: Interrupts) -> None:
        """Raise the workers' error, or return where the user wanted to stop and no worker is at fault."""
        began, before, said = time.monotonic(), interrupts.count, False
        while workers.running() and (waited := time.monotonic() - began) < GRACE_SECONDS and interrupts.count == before:
            if waited >= PATIENCE_SECONDS and not said:
                said = True
                left = until(round(GRACE_SECONDS - waited))
                self._stages.show(f"a worker has ended; waiting for the others {left}")
            self._take_reports()
        self.ended, error = workers.failed(), self._restarts.error(workers)
        if not interrupts.count or not ended_from_outside(self.ended):
            raise error
        self._display.say(str(error))
        self.outcome.stopped = True

    def _take_reports(self) -> None:
        """Handle the reports of the workers; wait a moment for the first one."""
        for rank, report in self._reports.take():
            self._handlers[report["kind"]](rank, report)
        self.taken.alerts.look(training=self.taken.training)

    def _take_last_reports(self) -> None:
        """Handle what is still on its way from workers that have ended well."""
        deadline = time.monotonic() + GRACE_SECONDS
        while not self.outcome.stopped and len(self.taken.results) < self._settings.run.workers:
            if time.monotonic() > deadline:
                raise ServerError("expected a result from every worker, but some ended without one; run again")
            self._take_reports()

    def _on_start(self, rank: int, report: Report) -> None:
        self._restarts.note_start(rank)
        if self._listening and self.taken.has_started(rank) and report["step"] >= self._settings.run.steps:
            raise self._lose_at_end()  # the others are somewhere in the evaluation
        if not rank and not self.taken.begun:
            self._restarts.may_begin = report.get("worker_return_seconds", 0.0) > 0
            self._folder.save_settings(self._settings, self._room)
        self.taken.start(rank, report)
        if not rank and self._asked_to_stop:
            self._machines.ask_to_stop()  # it may have come in the place of one that was asked

    def _lose_at_end(self) -> WorkerLostError:
        """Note that a machine was lost so late that another would find nobody who evaluates with it."""
        self._lost_at_end = True
        return WorkerLostError("a machine was lost while the run was evaluated")

    def _on_result(self, rank: int, report: Report) -> None:
        if not self.taken.results:
            self._losses = self._machines.losses
        self.taken.results[rank] = report

    def _on_fenced(self, rank: int) -> None:
        if self._restarts.note_fenced(rank):
            self._machines.kill_one(rank)

    def _on_room_of_server(self, wait: RoomWait | None) -> None:
        """Report, or show at once while the server closes, that it waits for room; called in a thread of the server."""
        (self._stages.show_room if self._reports.over else room_reporter(partial(self._reports.put, SERVER)))(wait)

    def _on_room(self, rank: int, report: Report) -> None:
        wait = room_wait(dict(report))
        (self._paused.discard if wait is None else self._paused.add)(rank)
        self.taken.pause(wait)
