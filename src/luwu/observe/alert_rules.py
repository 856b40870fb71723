"""The rules of alerts: each looks at one thing of a run, and says if it is bad, good again, or neither.

A rule that has called a thing bad calls it good only well below that bound, so that what stays at the bound raises one
alert and not many. Rules have no clock: times are given to them, in seconds of one clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from itertools import islice
from statistics import median
from typing import NamedTuple

from luwu.core.units import bytes_text, seconds_text

RECENT = 20
"""Attempts that a median of the last ones is taken over, and that must be finite before a loss counts as that again."""

LOWEST_ATTEMPTS = 100
"""Attempts that the lowest median of losses is taken over: among the medians of few noisy losses, the lowest of a long
run is far below the usual one, and has a small spread."""

LOSS_RISE = 0.1
"""Least rise of the loss that counts, as a part of its lowest median."""

LOSS_SPREADS = 2.0
"""The same in standard deviations of the single losses around that median."""

DEVIATION_OF_MEDIAN = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

VALIDATION_RISE = 0.05
"""Least rise of a validation loss that counts, as a part of the lowest one; two in a row must be above it."""

SLOW, FAST = 2.0, 1.5
"""Times the median: attempts are slow above the first, and as usual below the second."""

PACE_ATTEMPTS = 100
"""Attempts that the usual pace is the median of; slow ones do not count."""

LEAST_PACE_ATTEMPTS = 10
LEAST_IN_A_ROW = 3
LEAST_ROW_SECONDS = 10.0
"""Attempts that are slow, or as usual again, are that many in a row, and together at least that long."""

FULL_SOON_SECONDS = 3600.0
"""A disk that is full within this time at the present rate is bad; one that has twice the time is good."""

RATE_SECONDS, LEAST_RATE_SECONDS = 600.0, 300.0
"""A disk's rate is taken over the first time; before the second there is none."""

LEAST_FREE_BYTES, LEAST_FREE_SHARE = 1 << 30, 0.02
"""A disk with fewer free bytes than both is bad; one with twice as many is good."""

LAG_SECONDS = 60.0
"""A worker that others have waited for as long lags; for as long none may lag before that is over."""

LEAST_UNDURABLE_SECONDS = 1800.0
"""Time without a durable step that is bad, if commit points are not planned to be further apart."""

UNDURABLE_TIMES = 3.0
"""The same in planned times between two commit points."""


class Verdict(NamedTuple):
    """A rule's verdict: ``bad`` is None where a thing is neither bad nor good, so that an alert stays as it is."""

    bad: bool | None
    text: str = ""


UNDECIDED = Verdict(None)


class FiniteLoss:
    """Losses, of attempts and of validations, must be finite."""

    def __init__(self) -> None:
        self._finite = 0
        self._validation_is_finite = True

    def attempt(self, step: int, loss: float) -> Verdict:
        """Look at the loss of an attempt; ``step``: committed steps after it."""
        self._finite = self._finite + 1 if math.isfinite(loss) else 0
        if not self._finite:
            return Verdict(True, f"the loss is not finite ({loss}) after step {step}; lower the learning rate")
        is_good = self._finite >= RECENT and self._validation_is_finite
        return Verdict(False, f"the loss is finite again: {loss:.3f}") if is_good else UNDECIDED

    def validation(self, step: int, loss: float) -> Verdict:
        """Look at the validation loss after a step."""
        self._validation_is_finite = math.isfinite(loss)
        if self._validation_is_finite:
            return UNDECIDED
        return Verdict(True, f"the validation loss is not finite ({loss}) after step {step}")


class RisingLoss:
    """The median of the last losses must not be far above the lowest median that more of them in a row have had.

    Far is both a part of that median and some deviations of single losses around it: a loss that is noisy may rise by
    more.
    """

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=LOWEST_ATTEMPTS)
        self._lowest = math.inf
        self._margin = 0.0

    def committed(self, step: int, loss: float) -> Verdict:
        """Look at the loss of a committed step."""
        if not math.isfinite(loss):
            return UNDECIDED
        self._losses.append(loss)
        if len(self._losses) < RECENT:
            return UNDECIDED
        usual = median(self._losses)
        if usual < self._lowest:
            spread = DEVIATION_OF_MEDIAN * median(abs(each - usual) for each in self._losses)
            self._lowest, self._margin = usual, max(LOSS_RISE * abs(usual), LOSS_SPREADS * spread)
        now = median(islice(self._losses, len(self._losses) - RECENT, None))
        if now > self._lowest + self._margin:
            return Verdict(True, f"the loss rises: its median is {now:.3f} at step {step}, and was {self._lowest:.3f}")
        if now < self._lowest + self._margin / 2:
            return Verdict(False, f"the loss is low again: its median is {now:.3f} at step {step}")
        return UNDECIDED


class RisingValidation:
    """Two validation losses in a row must not be above the lowest one by a part of it."""

    def __init__(self) -> None:
        self._lowest = math.inf
        self._above = 0

    def validation(self, step: int, loss: float) -> Verdict:
        """Look at the validation loss after a step."""
        if not math.isfinite(loss):
            return UNDECIDED
        margin = VALIDATION_RISE * abs(self._lowest) if math.isfinite(self._lowest) else 0.0
        self._above = self._above + 1 if loss > self._lowest + margin else 0
        if self._above >= 2:
            words = f"the validation loss rises: it is {loss:.3f} after step {step}, and was {self._lowest:.3f}"
            return Verdict(True, words)
        is_good = loss < self._lowest + margin / 2
        self._lowest = min(self._lowest, loss)
        return Verdict(False, f"the validation loss is low again: {loss:.3f}") if is_good else UNDECIDED


class _Row:
    """Attempts in a row of which something is true: how many they are, and their seconds together."""

    def __init__(self) -> None:
        self._number, self._seconds = 0, 0.0

    def note(self, seconds: float, *, holds: bool) -> bool:
        """Note an attempt; return True if enough of them are in a row."""
        self._number, self._seconds = (self._number + 1, self._seconds + seconds) if holds else (0, 0.0)
        return self._number >= LEAST_IN_A_ROW and self._seconds >= LEAST_ROW_SECONDS


class SlowSteps:
    """Attempts must not take over twice the usual time, which is their median."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=PACE_ATTEMPTS)
        self._slow, self._fast = _Row(), _Row()
        self._is_slow = False

    @property
    def usual_seconds(self) -> float:
        """The usual time of an attempt; 0: it is not known yet."""
        return median(self._usual) if len(self._usual) >= LEAST_PACE_ATTEMPTS else 0.0

    def attempt(self, step: int, seconds: float) -> Verdict:
        """Look at the time of an attempt; ``step``: committed steps after it."""
        usual = self.usual_seconds
        if not usual or (not self._is_slow and seconds <= SLOW * usual):
            self._usual.append(seconds)
        if not usual:
            return UNDECIDED
        slow = self._slow.note(seconds, holds=seconds > SLOW * usual)
        fast = self._fast.note(seconds, holds=seconds < FAST * usual)
        if slow:
            self._is_slow = True
            words = f"steps are slow: {seconds_text(seconds)} at step {step}, and usually {seconds_text(usual)}"
            return Verdict(True, words)
        if fast:
            self._is_slow = False
            return Verdict(False, f"steps are as fast as usual again: {seconds_text(seconds)}")
        return UNDECIDED


class FillingDisk:
    """A disk must have free bytes, and must not be full soon at the rate at which these become fewer.

    Args:
        folder: a folder on it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._before: deque[tuple[float, int]] = deque()  # times, and free bytes

    def look(self, now: float, free_bytes: int, total_bytes: int) -> Verdict:
        """Look at the disk's free bytes."""
        self._before.append((now, free_bytes))
        while now - self._before[0][0] > RATE_SECONDS:
            self._before.popleft()
        least = min(LEAST_FREE_BYTES, LEAST_FREE_SHARE * total_bytes)
        left = self._seconds_left(now, free_bytes)
        free = f"{bytes_text(free_bytes)} of {bytes_text(total_bytes)} are free"
        if free_bytes < least:
            return Verdict(True, f"the disk of {self._folder} is nearly full: {free}")
        if left < FULL_SOON_SECONDS:
            return Verdict(True, f"the disk of {self._folder} is full in {seconds_text(left)} at this rate: {free}")
        if free_bytes > 2 * least and left > 2 * FULL_SOON_SECONDS:
            return Verdict(False, f"the disk of {self._folder} has room again: {free}")
        return UNDECIDED

    def _seconds_left(self, now: float, free_bytes: int) -> float:
        """Return the time until the disk is full at the present rate; infinity: it does not fill."""
        began, before = self._before[0]
        if now - began < LEAST_RATE_SECONDS or before <= free_bytes:
            return math.inf
        return free_bytes * (now - began) / (before - free_bytes)


class LaggingWorker:
    """Workers must not let the others wait for long."""

    def __init__(self) -> None:
        self._lagged_at = -math.inf

    def look(self, now: float, behind_seconds: Mapping[str, float]) -> Verdict:
        """Look at the seconds that others have waited for each worker, by rank."""
        rank, seconds = max(behind_seconds.items(), key=lambda each: each[1], default=("", 0.0))
        if seconds >= LAG_SECONDS:
            self._lagged_at = now
            return Verdict(True, f"the others have waited for worker {rank} for {seconds_text(seconds)}")
        if now - self._lagged_at >= LAG_SECONDS:
            return Verdict(False, "no worker is waited for any more")
        return UNDECIDED


class UndurableSteps:
    """Steps must become durable.

    Args:
        planned_steps, planned_seconds: planned distance of two commit points; 0: none of that kind.
    """

    def __init__(self, planned_steps: int, planned_seconds: float) -> None:
        self._planned_steps, self._planned_seconds = planned_steps, planned_seconds

    def look(self, since_seconds: float, unwritten: int, step_seconds: float) -> Verdict:
        """Look at the time since the last durable step.

        Args:
            since_seconds: this time.
            unwritten: steps that were made since.
            step_seconds: usual time of a step; 0: it is not known.
        """
        planned = max(self._planned_seconds, self._planned_steps * step_seconds)
        if not self._planned_steps and not self._planned_seconds:
            return UNDECIDED  # the run's end alone makes steps durable
        most = max(LEAST_UNDURABLE_SECONDS, UNDURABLE_TIMES * planned)
        if since_seconds > most:
            lost = f", and {unwritten} of them are in memory alone" if unwritten else ""
            return Verdict(True, f"no step has become durable for {seconds_text(since_seconds)}{lost}")
        if since_seconds < most / 2:
            return Verdict(False, "steps become durable again")
        return UNDECIDED
