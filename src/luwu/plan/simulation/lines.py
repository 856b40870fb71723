"""Lines that carry bytes one after the other, and the record of their busy times."""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from luwu.plan.clusters import Disk


@dataclass(frozen=True)
class Span:
    """An activity of a track from ``start`` to ``end``, in simulated seconds."""

    track: str
    name: str
    start: float
    end: float


@dataclass
class Record:
    """Spans of tracks, in the order in which they were begun."""

    spans: list[Span] = field(default_factory=list)

    def add(self, track: str, name: str, start: float, end: float) -> None:
        """Note a span; one without length is left out."""
        if end > start:
            self.spans.append(Span(track, name, start, end))

    def busy_seconds(self, track: str, since: float = 0.0) -> float:
        """Return the seconds that a track was busy, from a time on. Overlapping intervals count once."""
        busy, until = 0.0, since
        for span in sorted(self.spans, key=lambda span: span.start):
            if span.track == track and span.end > until:
                busy += span.end - max(span.start, until)
                until = span.end
        return busy


class Line:
    """Carries transfers in the order in which they are asked for, at a rate in bytes a second."""

    def __init__(self, environment: simpy.Environment, rate: float) -> None:
        self._environment = environment
        self._rate = rate
        self.free_at = 0.0

    def book(self, count: float) -> tuple[float, float]:
        """Take the next turn for ``count`` bytes, and return its begin and end."""
        start = max(self._environment.now, self.free_at)
        self.free_at = start + count / self._rate
        return start, self.free_at


class Disks:
    """A server's disks as one: all transfers share what they read, writes what they write."""

    def __init__(self, environment: simpy.Environment, disk: Disk, count: int) -> None:
        self._environment = environment
        self._all = Line(environment, disk.read_rate * count)
        self._writes = Line(environment, disk.write_rate * count)

    def read(self, count: float) -> tuple[float, float]:
        """Book a read, and return its begin and end."""
        return self._all.book(count)

    def write(self, count: float) -> tuple[float, float]:
        """Book a write, and return its begin and end."""
        start, end = self._all.book(count)
        return start, max(end, self._writes.book(count)[1])
