"""Events of torch.profiler as a trace has them: their bytes, their times on the worker's clock, and their bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from luwu.core.trace import clock_offset, clock_rounds

EVENT = np.dtype([("begin", "<u8"), ("end", "<u8"), ("name", "<u4"), ("track", "<u4")])
"""An event: times are of CLOCK_MONOTONIC, in nanoseconds; name and track are places in the lists beside the events."""

MOST_NAMES = 4096
LONGEST_NAME = 200
"""Bounds of the names in a profile. An event whose name is one too many is dropped."""


class Event(NamedTuple):
    """An event of torch.profiler; times are of the system's clock (CLOCK_REALTIME), in nanoseconds."""

    begin: int
    end: int
    name: str
    track: str


class Moment(NamedTuple):
    """A moment on two clocks, in nanoseconds: CLOCK_MONOTONIC, and what is added to it to have the system's clock."""

    monotonic: int
    offset: int
    error: int


@dataclass(frozen=True)
class Profile:
    """Events of torch.profiler in a worker's part of a trace.

    Attributes:
        events: records of `EVENT`, in the order of their begins.
        names: names of the events.
        tracks: names of their threads and devices.
        dropped: events that found no room.
        clock_error_ns: the most by which their times may be off on the worker's own clock.
        failure: reason why there are none; empty: they are there.
    """

    events: bytes = b""
    names: list[str] = field(default_factory=list)
    tracks: list[str] = field(default_factory=list)
    dropped: int = 0
    clock_error_ns: int = 0
    failure: str = ""


class RunningProfile(Protocol):
    """A profiler that is under way."""

    def stop(self) -> None:
        """Stop it; called once, in the thread that started it. Never raises."""
        ...

    def pack(self) -> Profile:
        """Return its events, once it has stopped. Another thread may call it, and it may take a second."""
        ...


def moment(monotonic: Callable[[], int] = time.monotonic_ns, system: Callable[[], int] = time.time_ns) -> Moment:
    """Read both clocks."""
    rounds = clock_rounds(system, monotonic)
    offset, error = clock_offset(rounds)
    return Moment(rounds[-1][2], offset, error)


def pack(found: Iterable[Event], most_bytes: int, began: Moment, ended: Moment) -> Profile:
    """Bring events to the worker's clock, and keep the first ones that fit.

    The system's clock may have been set or slewed meanwhile: a change between the two moments is spread evenly over
    the time between them, and counts as an error. Events that do not lie between the moments, such as those whose end
    was not seen, are cut there.

    Args:
        found: events, in any order.
        most_bytes: most bytes of the events.
        began, ended: moments before and after all of them.
    """
    names: dict[str, int] = {}
    tracks: dict[str, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    dropped = 0
    first, last = began.monotonic + began.offset, ended.monotonic + ended.offset
    change = (ended.offset - began.offset) / max(1, last - first)

    def own(at: int) -> int:
        at = min(max(at, first), last)
        return at - began.offset - round(change * (at - first))

    for begin, end, name, track in sorted(found):
        name = name[:LONGEST_NAME]
        fits = len(rows) < most_bytes // EVENT.itemsize and (name in names or len(names) < MOST_NAMES)
        if end < first or begin > last or not fits:
            dropped += 1
            continue
        number = names.setdefault(name, len(names))
        rows.append((own(begin), own(end), number, tracks.setdefault(track, len(tracks))))
    error = max(began.error, ended.error) + abs(ended.offset - began.offset)
    return Profile(np.array(rows, EVENT).tobytes(), list(names), list(tracks), dropped, error)
