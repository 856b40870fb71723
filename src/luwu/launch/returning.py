"""Runs a job until it is done, although its server on the network may be lost and come back meanwhile.

The workers are started again and join from the last commit: they own nothing that would be lost with them
(docs/decisions/0021-returning-servers.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from luwu.control.waiting import until
from luwu.core.errors import ServerError, WorkerLostError
from luwu.launch.alerting import RunAlerts
from luwu.launch.choosing_server import serving_one
from luwu.launch.elsewhere import ServerElsewhere
from luwu.launch.events import log_event
from luwu.launch.folder import RunFolder
from luwu.launch.interrupts import Interrupts
from luwu.launch.job import CredentialFiles, ServerAccess, mark_ended
from luwu.launch.local import LocalRun
from luwu.launch.outcome import Outcome
from luwu.launch.processes import Ended, ended_from_outside
from luwu.launch.restarts import Restarts
from luwu.launch.settings import Settings
from luwu.observe.display import Display


def run_job(
    settings: Settings,
    folder: RunFolder,
    display: Display,
    server: ServerAccess | None,
    *,
    takes_weights: bool,
    credentials: CredentialFiles,
) -> Outcome:
    """Train and evaluate, or stop at a commit when interrupted; the arguments are those of `LocalRun`.

    A run that has lost workers of another machine waits for others, for as long as it takes.

    Raises:
        LuwuError: the run's error. Where the server is elsewhere, was reached once, and the error came from there, it
            is raised after ``server_return_seconds`` without a commit.
    """
    with Interrupts() as interrupts:
        course = _Course()
        try:
            outcome = _run_on(
                settings, folder, display, server, interrupts, course,
                takes_weights=takes_weights, credentials=credentials,
            )  # fmt: skip
        except Exception as error:
            if course.begun and not interrupts.count:
                why = cause_of(error).partition("\n")[0] or type(error).__name__
                _tell_failure(settings, folder, display, course.step, why)
            raise
        finally:
            mark_ended(folder.job_path)
        if course.begun and outcome.stopped and not interrupts.count:
            _tell_failure(settings, folder, display, outcome.step, "it has ended, and was not stopped here")
        return outcome


@dataclass
class _Course:
    """Course of a job: the last step that is known, and if any `LocalRun` has begun to train.

    What fails before that is the command and not the run, which another process may train in the same folder.
    """

    step: int = 0
    begun: bool = False


def _tell_failure(settings: Settings, folder: RunFolder, display: Display, step: int, why: str) -> None:
    """Tell that the run has failed, for good: alerts of a `LocalRun` end with it, and others may follow."""
    alerts = RunAlerts(settings, folder, display, lambda: ServerElsewhere(folder.path))
    alerts.failed(step, why)
    alerts.close()


def _run_on(
    settings: Settings,
    folder: RunFolder,
    display: Display,
    server: ServerAccess | None,
    interrupts: Interrupts,
    course: _Course,
    *,
    takes_weights: bool,
    credentials: CredentialFiles,
) -> Outcome:
    """Run until the run is done, was stopped or has failed, and note its course."""
    restarts = Restarts(settings.run.restarts)
    returning = Returning(settings.run.server_return_seconds, restarts)
    reached = False
    while True:
        if server is not None:
            server = serving_one(server, lambda: not interrupts.count, display.say)
        run = LocalRun(
            settings, folder, display, server,
            takes_weights=takes_weights, restarts=restarts, credentials=credentials,
        )  # fmt: skip
        try:
            return run.run(interrupts)
        except (ServerError, WorkerLostError) as error:
            if run.waits_again:
                step = run.outcome.step
                display.say(f"{cause_of(error)}; the run stays after step {step} until other machines have joined")
                continue
            reached = reached or run.taken.begun
            killed = [ended.rank for ended in run.ended if ended.status < 0]
            if server is None or not ended_from_outside(run.ended) or not (reached or killed):
                raise
            step = run.outcome.step
            word = returning.lose(run.ended, step, committed=run.taken.committed)
            if not word:
                raise type(error)(f"{error}; step {step} is the last one known; the same command goes on") from error
            display.say(str(error))
            kept = ", ".join(str(log) for rank in killed if (log := folder.keep_log(rank)) is not None)
            display.say(word := f"{word}; the log of what was killed is now {kept}" if kept else word)
            log_event(folder, f"{cause_of(error)}; {word}")
        finally:
            course.step, course.begun = run.outcome.step, course.begun or run.taken.begun
        server = server.model_copy(update={"connect_seconds": returning.connect_seconds})


def cause_of(error: Exception) -> str:
    """Return what an error says has happened, without what its reader is to do: the launcher does it."""
    return str(error).split(";")[0]


class Returning:
    """Decides whether the workers of a run that was ended from elsewhere join again.

    Args:
        seconds: the longest time without a commit after a loss; 0: a lost server ends the run.
        restarts: the restarts of killed workers that the run has left.
        clock: returns the time in seconds.

    Attributes:
        connect_seconds: the time in which the server must answer the workers that join again; None: the usual one.
    """

    def __init__(self, seconds: float, restarts: Restarts, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._restarts = restarts
        self._clock = clock
        self._deadline: float | None = None
        self.connect_seconds: float | None = None

    def lose(self, ended: Sequence[Ended], step: int, *, committed: bool) -> str:
        """Note that the run has failed; return a sentence for the user if its workers join again, else "".

        Args:
            ended: the workers that failed.
            step: the last step that is known.
            committed: the run committed a step since its workers joined.
        """
        killed = [each for each in ended if each.status < 0]
        if self._deadline is None or committed:
            self._deadline = self._clock() + self._seconds
        if killed:
            self.connect_seconds = None
            joins = self._restarts.take(len(killed))
            return f"all workers join again after step {step} (restart {self._restarts.in_words()})" if joins else ""
        left = self._deadline - self._clock()
        if left <= 0:
            return ""
        self.connect_seconds = left
        return f"the run stays at step {step}; its workers join again if the server answers {until(round(left))}"
