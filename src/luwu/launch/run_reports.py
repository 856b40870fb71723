"""The workers' reports of a run: rows of metrics.jsonl, what the user sees, and how far the run has come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from luwu.core.errors import WorkerLostError
from luwu.core.room import RoomWait
from luwu.launch.alerting import RunAlerts, WatchedServer
from luwu.launch.folder import RunFolder
from luwu.launch.last_attempts import read_attempts, read_last_attempts
from luwu.launch.logged_metrics import LoggedMetrics
from luwu.launch.outcome import Outcome
from luwu.launch.rates import with_rate
from luwu.launch.settings import Settings
from luwu.launch.stages import Stages
from luwu.launch.start_words import size_words, step_words
from luwu.launch.written import WrittenBytes
from luwu.observe.display import Display
from luwu.observe.meter import Meter, StepRecord, StepReport, served_between

Report = Mapping[str, Any]


class RunReports:
    """Takes the reports of all workers of a run.

    Args:
        settings: of the run; memory and stores are the server's own where it is elsewhere.
        folder: the run's folder.
        display: shows the run to the user.
        server: returns the run's server.
        server_here: the settings are the server's, too.
        takes_weights: the run is a new one, and goes on from the weights of another run's store.

    Attributes:
        settings: the settings, with the learning rate that the run's model has by itself.
        meter: the rates.
        alerts: the alerts.
        outcome: the end of the run, or how far it has come.
        validated_step: last step whose validation loss the run folder has.
        results: the evaluation's, by rank.
        begun: rank 0 has joined, with a model.
        committed: a step was committed since the workers joined.
        training: steps are being made: only then there is a commit to stop at.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        display: Display,
        server: Callable[[], WatchedServer],
        *,
        server_here: bool,
        takes_weights: bool,
    ) -> None:
        self.settings, self._why_this_rate = with_rate(settings, folder, takes_weights=takes_weights)
        self._steps_before = folder.saved_steps()
        self._folder = folder
        self._display = display
        self._server = server
        self._server_here = server_here
        self.alerts = RunAlerts(settings, folder, display, server)
        self._stats_before: Mapping[str, Any] = {}
        self._threads = len(os.sched_getaffinity(0))  # as many update in a server of this process
        self._stages = Stages(display)
        self._written = WrittenBytes(folder.written_path)
        self.meter = Meter(settings.run.workers, settings.run.steps)
        steps_made, self.validated_step = folder.last_steps()
        self.outcome = Outcome(step=steps_made)
        self.results: dict[int, Report] = {}
        self._started: set[int] = set()  # ranks
        self.begun = self.committed = self.training = False
        self._metrics: LoggedMetrics

    @property
    def stages(self) -> Stages:
        """The stage that the user sees."""
        return self._stages

    def open(self, metrics: LoggedMetrics) -> None:
        """Write rows to a file from now on."""
        self._metrics = metrics

    def start(self, rank: int, report: Report) -> None:
        """Take the first report of a worker, which has its model.

        Raises:
            WorkerLostError: it counts attempts that the server has not seen; a row for each would have no end.
        """
        most = self._server().stats().get("attempts", report["attempts"])
        if report["attempts"] > most:
            raise WorkerLostError(
                f"worker {rank}: report of its start: expected at most {most} attempts, as many as the server has "
                f"counted, found {report['attempts']}; run luwu train again to resume"
            )
        replaces = rank in self._started  # what a rank's first worker has noted until now is its own
        self._started.add(rank)
        if replaces:
            noted = read_attempts(self._folder.attempts_path(rank))
            for record in self.meter.replace(rank, report["attempts"], noted):
                self.take_record(record)
            if self.meter.all_begin_at(report["attempts"]):
                self._resume_metrics(report)
        if not rank and not self.begun:
            self._begin(report)
        if self.begun:
            self._stages.show("training" if self.training else "validating")

    def has_started(self, rank: int) -> bool:
        """Return True if a worker of this rank has started before."""
        return rank in self._started

    def step(self, rank: int, report: Report) -> None:
        """Take a report of an attempt."""
        self.take_record(self.meter.add(rank, cast(StepReport, report)))

    def validated(self, rank: int, report: Report) -> None:
        """Take a share of a validation that was made after a resume."""
        step = report["step"]
        loss = self.meter.validated(rank, step, (report["loss_sum"], report["sequences"]))
        if loss is not None:
            self._metrics.note_validation(step, loss)
            self._display.say(f"step {step}: validation loss {loss:.3f}")
            self.alerts.validated(step, loss)

    def take_record(self, record: StepRecord | None) -> None:
        """Write an attempt's row, and show it, once all of its reports are there."""
        if record is None:
            return
        stats = self._server().stats()
        shared_memory = self._server_here and not self.settings.run.listen
        part = served_between(self._stats_before, stats, self._threads, shared_memory=shared_memory)
        record = replace(record, server=part)
        self._stats_before = stats
        self._metrics.append(record)
        self.outcome.step = record.step
        self.committed = self.committed or record.committed
        self.training = record.step < self.settings.run.steps
        if not record.committed:
            self._display.say(f"step {record.step + 1} rolled back: gradients were not finite; trying the next batch")
        if record.validation_loss is not None:
            self._display.say(f"step {record.step}: validation loss {record.validation_loss:.3f}")
        self._written.note(self._note_written(stats))
        self._stages.say_failure(str(stats.get("snapshot_failure", "")))
        self._display.step(self.meter, stats)
        self.alerts.attempt(record)

    def pause(self, wait: RoomWait | None) -> None:
        """Show that a full disk pauses the run, or with None that it goes on, and look at its disks."""
        self._stages.show_room(wait)
        self.alerts.look_at_disks()

    def pause_here(self, wait: RoomWait | None) -> None:
        """Take a pause of this process, whose run folder is on a full disk, as `pause`; its server tells who asks."""
        self._server().note_wait(wait)
        self.pause(wait)

    def conclude(self) -> None:
        """Make the run's outcome of the results."""
        results = [self.results[rank] for rank in sorted(self.results)]
        sequences = max(1, sum(result["sequences"] for result in results))
        loss = self.outcome.validation_loss = sum(result["loss_sum"] for result in results) / sequences
        self._metrics.note_validation(self.settings.run.steps, loss)
        self.alerts.validated(self.settings.run.steps, loss)
        self.outcome.prompt, self.outcome.sample = results[0]["prompt"], results[0]["sample"]

    def end(self) -> None:
        """Note what the server has written, and tell no more alerts."""
        self.alerts.close()
        self._note_written(self._server().stats())
        self.outcome.bytes_of_run = self._written.end(self.outcome.bytes_written)

    def _note_written(self, stats: Mapping[str, Any]) -> int:
        """Note the bytes written since the start; a network's server counts none any more when its run has ended."""
        self.outcome.bytes_written = max(self.outcome.bytes_written, int(stats.get("bytes_written", 0)))
        return self.outcome.bytes_written

    def _begin(self, report: Report) -> None:
        """Tell the user what the run begins with, at rank 0's first start."""
        self.begun = True
        self._resume_metrics(report)
        self.meter.rolled_back = report["rolled_back"]
        self.meter.first_step = report.get("first_step", 0)
        run, made, step = self.settings.run, self.outcome.step, report["step"]
        self.outcome.step = step
        self.training = step < run.steps
        self.alerts.begin(step)
        assert self.outcome.corpus is not None
        for text in size_words(report["parameters"], run.workers, self.outcome.corpus):
            self._display.say(text)
        for text in step_words(step, made, run, server_here=self._server_here, steps_before=self._steps_before):
            self._display.say(text)
        if not step and self._why_this_rate:
            self._display.say(self._why_this_rate)

    def _resume_metrics(self, start: Report) -> None:
        """Make the rows agree with a worker's counts when it started."""
        noted = read_last_attempts(self._folder.attempts_paths())
        if word := self._metrics.resume(start["attempts"], start["step"], noted):
            self._display.say(word)
