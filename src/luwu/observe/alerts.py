"""Alerts of a run, as a pure machine: what happens goes in, and alerts that are raised or cleared come out.

It has no clock, thread or file. Each alert is raised once, and cleared once before it is raised again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from luwu.core.durability import CommitPoints
from luwu.observe.alert_rules import (
    FillingDisk,
    FiniteLoss,
    LaggingWorker,
    RisingLoss,
    RisingValidation,
    SlowSteps,
    UndurableSteps,
    Verdict,
)
from luwu.observe.meter import StepRecord

NOT_FINITE, RISING, VALIDATION_RISING = "loss_not_finite", "loss_rising", "validation_rising"
SLOW_STEPS, DISK_FULL, LAGGING, NOT_DURABLE = "slow_steps", "disk_full_soon", "worker_lagging", "no_durable_step"
FAILED = "run_failed"

STARTED = "started"
"""State of a line in alerts.jsonl that is no alert: the run has begun to train, and what was raised before is over."""

MEANINGS = {
    NOT_FINITE: (
        "the loss of an attempt, or a validation loss, is infinite or no number",
        "20 attempts in a row are finite, and the last validation was",
    ),
    RISING: (
        "the median of the last 20 losses is above the lowest one that 100 in a row have had, by more than a tenth of "
        "it and by more than 2 standard deviations of the losses then",
        "it is above by less than half as much",
    ),
    VALIDATION_RISING: (
        "two validation losses in a row are over 5 % above the lowest one",
        "one is less than 2.5 % above it",
    ),
    SLOW_STEPS: (
        "at least 3 attempts in a row, which take 10 seconds or more together, each take over twice the median of the "
        "last 100 that were not slow",
        "as many take less than 1.5 times the median",
    ),
    DISK_FULL: (
        "a disk of the store or of the run folder is full within an hour at the rate of the last 10 minutes, or has "
        "less than 1 GiB and less than 2 % free",
        "there are two hours, and twice as much is free",
    ),
    LAGGING: (
        "the others have waited for a worker that makes no progress for a minute",
        "for a minute none is waited for as long",
    ),
    NOT_DURABLE: (
        "no step has become durable for 30 minutes, and for 3 times as long as `durable` plans",
        "the last one is half as long ago",
    ),
    FAILED: (
        "the run, once it has begun to train, ends with an error, or before its last step although nobody has stopped "
        "it here",
        "never: a run that is started again begins without alerts",
    ),
}
"""When each alert is raised, and when it is cleared."""


class Change(NamedTuple):
    """An alert that is raised, or cleared; ``text`` is a sentence without a full stop."""

    name: str
    raised: bool
    text: str

    @property
    def state(self) -> str:
        """The word for it."""
        return "raised" if self.raised else "cleared"


def standing_words(name: str, text: str, step: int) -> str:
    """Return the sentence of an alert that stands since a step: its figures are of then, and not of now."""
    return text if name == FAILED else f"since step {step:,}: {text}"


class Alerts:
    """Alerts of one run. Each function takes something that has happened, and yields what it changes.

    Args:
        commit_points: the steps that are planned to become durable.

    Attributes:
        standing: sentences of the alerts that are raised, by name.
    """

    def __init__(self, commit_points: CommitPoints) -> None:
        self.standing: dict[str, str] = {}
        self._finite, self._rising, self._slow = FiniteLoss(), RisingLoss(), SlowSteps()
        self._validation, self._lagging = RisingValidation(), LaggingWorker()
        self._durable = UndurableSteps(*commit_points)
        self._disks: dict[str, FillingDisk] = {}
        self._bad_disks: dict[str, str] = {}

    def attempt(self, record: StepRecord) -> Iterator[Change]:
        """Take an attempt's record."""
        yield from self._take(NOT_FINITE, self._finite.attempt(record.step, record.loss))
        if record.committed:
            yield from self._take(RISING, self._rising.committed(record.step, record.loss))
        yield from self._take(SLOW_STEPS, self._slow.attempt(record.step, record.seconds))
        if record.validation_loss is not None:
            yield from self.validated(record.step, record.validation_loss)

    def validated(self, step: int, loss: float) -> Iterator[Change]:
        """Take the validation loss after a step."""
        yield from self._take(NOT_FINITE, self._finite.validation(step, loss))
        yield from self._take(VALIDATION_RISING, self._validation.validation(step, loss))

    def disk(self, folder: str, now: float, free_bytes: int, total_bytes: int) -> Iterator[Change]:
        """Take the free bytes of the disk that a folder is on. All disks share one alert."""
        verdict = self._disks.setdefault(folder, FillingDisk(folder)).look(now, free_bytes, total_bytes)
        if verdict.bad:
            self._bad_disks[folder] = verdict.text
        elif verdict.bad is False:
            self._bad_disks.pop(folder, None)
        is_other_bad = not verdict.bad and bool(self._bad_disks)
        yield from self._take(DISK_FULL, Verdict(None) if is_other_bad else verdict)

    def behind(self, now: float, seconds: Mapping[str, float]) -> Iterator[Change]:
        """Take the seconds that others have waited for each worker, by rank."""
        yield from self._take(LAGGING, self._lagging.look(now, seconds))

    def durable(self, since_seconds: float, unwritten: int) -> Iterator[Change]:
        """Take the time since the last durable step, and the number of steps that were made since."""
        yield from self._take(NOT_DURABLE, self._durable.look(since_seconds, unwritten, self._slow.usual_seconds))

    def failed(self, step: int, why: str) -> Iterator[Change]:
        """Take the end of a run that has failed; ``step``: committed steps, as far as they are known."""
        yield from self._take(FAILED, Verdict(True, f"the run has failed after step {step}: {why}"))

    def _take(self, name: str, verdict: Verdict) -> Iterator[Change]:
        if verdict.bad is None or verdict.bad == (name in self.standing):
            return
        if verdict.bad:
            self.standing[name] = verdict.text
        else:
            del self.standing[name]
        yield Change(name, verdict.bad, verdict.text)
