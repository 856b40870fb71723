"""Another machine's monotonic clock, from requests to it: NTP's way (RFC 5905), for times in reports."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

KEPT = 64
"""Requests that count. A few minutes' worth at a step each few seconds, in which clocks drift by milliseconds."""


class _Sample(NamedTuple):
    seconds: float  # that the request took
    ahead: float


class OtherClock:
    """The difference of two clocks. The fastest request says it best: at most half of its time is the error."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=KEPT)

    def note(self, asked: float, told: float, answered: float) -> None:
        """Take the other's time, which it told between two times of the own clock."""
        self._samples.append(_Sample(answered - asked, told - (asked + answered) / 2))

    def time_there(self, time: float) -> float:
        """Return the other clock's time at a time of the own one; the same while nothing is known."""
        return time + min(self._samples).ahead if self._samples else time
