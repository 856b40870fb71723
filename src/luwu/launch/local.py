"""A whole run on this machine: an embedded server here, or one on the network, and worker processes beside it.

This process never imports torch: the workers bring their own, and it stays as small as the server is.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from luwu.control.timeouts import PATIENCE_SECONDS
from luwu.control.waiting import until
from luwu.core.errors import ServerError
from luwu.core.room import Room, RoomWait, WaitStoppedError
from luwu.data.corpus import Corpus
from luwu.launch.checks import check_memory
from luwu.launch.claiming import claim_here, find_run_id, make_claim
from luwu.launch.elsewhere import ServerElsewhere
from luwu.launch.exposing import expose_run
from luwu.launch.folder import RunFolder
from luwu.launch.interrupts import Interrupts
from luwu.launch.job import Job, ServerAccess
from luwu.launch.last_attempts import make_room, read_attempts, read_last_attempts
from luwu.launch.logged_metrics import LoggedMetrics
from luwu.launch.outcome import Outcome
from luwu.launch.preparing import prepare_corpus
from luwu.launch.processes import Ended, WorkerProcesses, ended_from_outside
from luwu.launch.rates import with_rate
from luwu.launch.reports import room_reporter, room_wait
from luwu.launch.restarts import WORKER_RETURN_SECONDS, Restarts
from luwu.launch.settings import Settings
from luwu.launch.stages import Stages
from luwu.launch.start_words import size_words, step_words
from luwu.launch.words import checked_report
from luwu.launch.written import WrittenBytes
from luwu.observe.display import Display, size
from luwu.observe.meter import Meter, StepRecord, StepReport
from luwu.server.laggards import Patience
from luwu.server.server import LocalServer
from luwu.store.run_record import Claim, Counts

LOOK_SECONDS = 0.1
"""Seconds between two looks of the launcher at workers that report nothing."""

REPORTS_WAITING = 4
"""Reports of each worker that may wait in the launcher. Later ones are not answered, and the run waits."""

SERVER = -1
"""Rank that stands for the server in a report."""

GRACE_SECONDS = 15.0
"""Seconds that the other workers may take to end by themselves after one failed."""

Report = Mapping[str, Any]


class LocalRun:
    """Runs a job once: start or resume, train, evaluate.

    Args:
        settings: of the run; memory and stores are the server's own where it is elsewhere.
        folder: the folder for the run's files.
        display: shows the run to the user.
        server: a server on the network; None: this process embeds one.
        takes_weights: the run is a new one, and goes on from the weights of another run's store.
        restarts: the restarts that the job has left; None: as the settings have it.

    Attributes:
        outcome: the end of the run, or how far it has come.
        ended: workers that failed and ended the run.
        begun: a worker has joined, with a model.
        committed: a step was committed since the workers joined.
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
    ) -> None:
        self.ended: list[Ended] = []
        self.committed = False
        self._remote = server
        self._takes_weights = takes_weights
        self._claim: Claim | None = None
        self._first: Counts | None = None  # the store's counts when the run began on it
        self._settings, self._why_this_rate = with_rate(settings, folder, takes_weights=takes_weights)
        self._folder = folder
        self._display = display
        self._written = WrittenBytes(folder.written_path)
        self._meter = Meter(settings.run.workers, settings.run.steps)
        self._reports: queue.Queue[tuple[int, Report]] = queue.Queue(REPORTS_WAITING * settings.run.workers)
        self._over = threading.Event()
        self._paused: set[int] = set()
        self._stages = Stages(display)
        self._results: dict[int, Report] = {}
        self._started: set[int] = set()  # ranks
        self.begun = False
        self._restarts = restarts or Restarts(settings.run.restarts)
        self._restarts.may_begin = False
        self._training = False  # steps are being made: only then there is a commit to stop at
        steps_made, self._validated_step = folder.last_steps()
        self.outcome = Outcome(step=steps_made)
        self._handlers: dict[str, Callable[[int, Report], None]] = {
            "start": self._on_start,
            "step": self._on_step,
            "say": lambda rank, report: None if rank else self._display.say(report["text"]),
            "stage": lambda rank, report: self._stages.show(report["text"], report["detail"]),
            "room": self._on_room,
            "stopped": lambda rank, report: self.outcome.stop(),
            "validated": self._on_validated,
            "fenced": lambda rank, report: self._restarts.note_fenced(report["rank"]),
            "result": self._results.__setitem__,
        }

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
                with server, expose_run(self._settings.run.metrics, self._meter, server, self._display.say):
                    self._run_on(server, interrupts)
            finally:
                written = self.outcome.bytes_written = int(server.stats().get("bytes_written", 0))
                self.outcome.bytes_of_run = self._written.end(written)
            self._stages.show("stopped" if self.outcome.stopped else "done")
            if self.outcome.stopped:
                self.outcome.step = self._step_of_store(self.outcome.step)
        return self.outcome

    def _run_on(self, server: LocalServer | ServerElsewhere, interrupts: Interrupts) -> None:
        seconds = self._settings.run.disk_full_wait_seconds
        self._room = Room(seconds, self._stages.show_room, lambda: interrupts.count > 0)
        try:
            self._run(interrupts)
        except WaitStoppedError:
            self.outcome.stopped = True
        finally:
            self._begin_close(interrupts)
        server.close()  # while its figures are still told

    def _begin_close(self, interrupts: Interrupts) -> None:
        """Take no more reports, and show that the server, which is closed next, puts its last steps on the disk."""
        self._interrupts_before_close = interrupts.count
        self._over.set()
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
            self._folder, self._show_reading, lambda: interrupts.count > 0, self._stages.show_room, self._room
        )
        if self.outcome.corpus is None:
            self.outcome.stopped = True
            return
        if self._remote is None:
            check_memory(self._settings, self.outcome.corpus.vocabulary, self._folder)
        self._make_claim(self.outcome.corpus)
        self._metrics = LoggedMetrics(self._settings, self._folder, self._room, self._display.say)
        try:
            self._supervise(interrupts)
        finally:
            self._metrics.close()

    def _serve(self, interrupts: Interrupts) -> LocalServer | ServerElsewhere:
        run = self._settings.run
        if self._remote is not None:
            return ServerElsewhere(self._folder.path)
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
            on_room=self._on_room_of_server,
            on_slow=self._say_soon,
            patience=Patience(
                WORKER_RETURN_SECONDS if run.restarts else 0.0, run.step_deadline_seconds, self._restarts.note_overdue
            ),
            gives_up=lambda: self._over.is_set() and interrupts.count > self._interrupts_before_close,
        )

    def _make_claim(self, corpus: Corpus) -> None:
        """Make the run's id and claim on its store; the workers get the claim if the store is elsewhere."""
        store = self._folder.stores(self._settings)[0] if self._remote is None else None
        run_id = find_run_id(self._settings, self._folder, store)
        self._folder.save_id(run_id, self._room)
        claim = make_claim(self._settings, self._folder, run_id, corpus, takes_weights=self._takes_weights)
        self._claim = replace(claim, steps_made=self.outcome.step)
        if self._remote is not None:
            self._write_job(self._claim.to_json())

    def _on_open(self, counts: Counts) -> Counts:
        """Claim the store once this process's server has opened it; called in a thread of the server."""
        assert self._claim is not None
        self._first = claim_here(self._claim, self._folder.stores(self._settings)[0], self._say_soon)(counts)
        return self._first

    def _say_soon(self, text: str) -> None:
        """Show a sentence of a thread of the server."""
        self._queue(0, {"kind": "say", "text": text})

    def _queue(self, rank: int, report: Report) -> None:
        """Pass a report on, in its sender's thread. While the launcher waits for room the sender waits, too."""
        while not self._over.is_set():
            with suppress(queue.Full):
                self._reports.put((rank, report), timeout=LOOK_SECONDS)
                return

    def _write_job(self, claim: str | None = None) -> None:
        self._job = Job(
            settings=self._settings,
            folder=str(self._folder.path),
            socket_path=str(self._server.socket_path) if self._remote is None else None,
            launcher_pid=os.getpid(),
            validated_step=self._validated_step,
            server=self._remote,
            claim=claim,
        )
        self._job.write(self._folder.job_path, self._room)
        for rank in range(self._settings.run.workers):
            path = self._folder.attempts_path(rank)
            self._room.retry(partial(make_room, path), path)

    def _show_reading(self, done: float, total: float) -> None:
        self._stages.show("reading the text", f"{100 * done / total:.0f} % of {size(total)}")

    def _supervise(self, interrupts: Interrupts) -> None:
        self._job.stop_path.unlink(missing_ok=True)
        self._stages.show("starting workers")
        workers = WorkerProcesses(self._folder, self._settings.run.workers, self._queue, self._room)
        asked = False
        try:
            while workers.running() or (workers.failed() and not self._restarts.gives_up(workers, may_start=not asked)):
                self._take_reports()
                for text in self._restarts.look(workers, may_start=not asked):
                    self._display.say(text)
                if self._restarts.gives_up(workers, may_start=not asked):
                    break
                if interrupts.count > 1 or (interrupts.count and (self._paused or not self._training)):
                    self.outcome.stopped = True
                    return
                if interrupts.count and not asked:
                    asked = True
                    self._stages.show("stopping at the next commit; press Ctrl-C again to stop at once")
                    workers.ask_to_stop()
            if workers.failed():
                self._fail(workers, interrupts)
                return
            self._take_last_reports()
        finally:
            workers.kill()
            self._job.stop_path.unlink(missing_ok=True)
        self._conclude()

    def _fail(self, workers: WorkerProcesses, interrupts: Interrupts) -> None:
        """Raise the workers' error, or return where the user wanted to stop and no worker is at fault."""
        began, before, said = time.monotonic(), interrupts.count, False
        while workers.running() and (waited := time.monotonic() - began) < GRACE_SECONDS and interrupts.count == before:
            if waited >= PATIENCE_SECONDS and not said:
                said = True
                left = until(round(GRACE_SECONDS - waited))
                self._stages.show(f"a worker has ended; waiting for the others {left}")
            self._take_reports()
        self.ended, error = workers.failed(), workers.error()
        if not interrupts.count or not ended_from_outside(self.ended):
            raise error
        self._display.say(str(error))
        self.outcome.stopped = True

    def _take_reports(self) -> None:
        """Handle the reports of the workers; wait a moment for the first one."""
        timeout = LOOK_SECONDS
        while True:
            try:
                rank, report = self._reports.get(timeout=timeout)
            except queue.Empty:
                return
            timeout = 0.0
            report = checked_report(rank, report)
            self._handlers[report["kind"]](rank, report)

    def _take_last_reports(self) -> None:
        """Handle what is still on its way from workers that have ended well."""
        deadline = time.monotonic() + GRACE_SECONDS
        while not self.outcome.stopped and len(self._results) < self._settings.run.workers:
            if time.monotonic() > deadline:
                raise ServerError("expected a result from every worker, but some ended without one; run again")
            self._take_reports()

    def _on_start(self, rank: int, report: Report) -> None:
        self._restarts.note_start(rank)
        replaces = rank in self._started  # what a rank's first worker has noted until now is its own
        self._started.add(rank)
        if replaces:
            noted = read_attempts(self._folder.attempts_path(rank))
            for record in self._meter.replace(rank, report["attempts"], noted):
                self._take_record(record)
            if self._meter.all_begin_at(report["attempts"]):
                self._resume_metrics(report)
        if rank or self.begun:
            return
        self.begun = True
        self._restarts.may_begin = report.get("worker_return_seconds", 0.0) > 0
        self._folder.save_settings(self._settings, self._room)
        self._resume_metrics(report)
        self._meter.rolled_back = report["rolled_back"]
        run, made, step = self._settings.run, self.outcome.step, report["step"]
        self.outcome.step = step
        self._training = step < run.steps
        assert self.outcome.corpus is not None
        for text in size_words(report["parameters"], run.workers, self.outcome.corpus):
            self._display.say(text)
        for text in step_words(step, made, run, server_here=self._remote is None):
            self._display.say(text)
        if not step and self._why_this_rate:
            self._display.say(self._why_this_rate)
        self._stages.show("training" if self._training else "evaluating")

    def _resume_metrics(self, start: Report) -> None:
        """Make the rows agree with a worker's counts when it started."""
        noted = read_last_attempts(self._folder.attempts_paths())
        if word := self._metrics.resume(start["attempts"], start["step"], noted):
            self._display.say(word)

    def _on_step(self, rank: int, report: Report) -> None:
        self._take_record(self._meter.add(rank, cast(StepReport, report)))

    def _take_record(self, record: StepRecord | None) -> None:
        """Write an attempt's row, and show it, once all of its reports are there."""
        if record is None:
            return
        self._metrics.append(record)
        self.outcome.step = record.step
        self.committed = self.committed or record.committed
        self._training = record.step < self._settings.run.steps
        if not record.committed:
            self._display.say(f"step {record.step + 1} rolled back: gradients were not finite; trying the next batch")
        if record.validation_loss is not None:
            self._display.say(f"step {record.step}: validation loss {record.validation_loss:.3f}")
        stats = self._server.stats()
        self._written.note(stats.get("bytes_written", 0))
        self._stages.say_failure(str(stats.get("snapshot_failure", "")))
        self._display.step(self._meter, stats)

    def _on_validated(self, rank: int, report: Report) -> None:
        step = report["step"]
        loss = self._meter.validated(rank, step, (report["loss_sum"], report["sequences"]))
        if loss is not None:
            self._metrics.note_validation(step, loss)
            self._display.say(f"step {step}: validation loss {loss:.3f}")

    def _on_room_of_server(self, wait: RoomWait | None) -> None:
        """Report, or show at once while the server closes, that it waits for room; called in a thread of the server."""
        (self._stages.show_room if self._over.is_set() else room_reporter(partial(self._queue, SERVER)))(wait)

    def _on_room(self, rank: int, report: Report) -> None:
        wait = room_wait(dict(report))
        (self._paused.discard if wait is None else self._paused.add)(rank)
        self._stages.show_room(wait)

    def _conclude(self) -> None:
        if self.outcome.stopped:
            return
        results = [self._results[rank] for rank in sorted(self._results)]
        sequences = sum(result["sequences"] for result in results)
        loss = self.outcome.validation_loss = sum(result["loss_sum"] for result in results) / sequences
        if self._settings.run.eval_every:
            self._metrics.note_validation(self._settings.run.steps, loss)
        self.outcome.prompt, self.outcome.sample = results[0]["prompt"], results[0]["sample"]
