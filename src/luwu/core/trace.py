"""Records of a run's work while somebody traces it: their kinds, their bytes, and those of a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from luwu.core.errors import ConfigError

if TYPE_CHECKING:
    from luwu.core.native import TraceRecorder
    from luwu.core.profiling import RunningProfile

MOST_STEPS = 1000
LEAST_BYTES = 1 << 16
MOST_BYTES = 1 << 30
"""Bounds of what may be asked for: attempts at steps, and bytes of records of a process."""

MOST_PROFILED_STEPS = 20
"""Most attempts of a trace with a profile: the memory that torch.profiler takes in the worker grows with them."""

NONE = 0xFFFFFFFF
"""Number of no block and of no chunk."""

NOBODY = 0xFFFF
"""Number of no worker."""

RECORD = np.dtype(
    [
        ("begin", "<u8"),
        ("end", "<u8"),
        ("bytes", "<u8"),
        ("step", "<u4"),
        ("block", "<u4"),
        ("chunk", "<u4"),
        ("worker", "<u2"),
        ("kind", "<u2"),
    ]
)
"""A record as native/trace/recorder.h has it; times are of CLOCK_MONOTONIC, in nanoseconds."""


def require_bounds(steps: int, most_bytes: int, *, with_profile: bool) -> None:
    """Raise ConfigError for numbers of attempts at steps, and of bytes, that no trace may have."""
    most_steps, words = (MOST_PROFILED_STEPS, " with a profile") if with_profile else (MOST_STEPS, "")
    if not 1 <= steps <= most_steps:
        raise ConfigError(f"steps: expected 1 to {most_steps}{words}, found {steps}")
    if not LEAST_BYTES <= most_bytes <= MOST_BYTES:
        raise ConfigError(f"limit: expected {LEAST_BYTES} to {MOST_BYTES} bytes, found {most_bytes}")


class Kind(IntEnum):
    """Kind of a record; native/trace/recorder.h says what each is."""

    READ = 1
    HAND_OUT = 2
    COLLECT = 3
    READ_STATES = 4
    UPDATE = 5
    WRITE = 6
    COMMIT = 7
    ROLL_BACK = 8
    KEEP = 9
    WRITE_KEPT = 10
    READ_KEPT = 11
    CHECKSUM = 12
    COPY_RECORD = 13
    STEP = 32
    FORWARD = 33
    BACKWARD = 34
    PULL = 35
    PUSH = 36
    END = 37
    SUM = 64


PIECE_ITEMS = 1 << 16
"""Records, or events of a profile, in one message."""

_CLOCK_QUESTIONS = 8


def pieces_of(content: bytes, item_bytes: int) -> Iterator[bytes]:
    """Cut items of so many bytes into the contents of messages."""
    size = item_bytes * PIECE_ITEMS
    return (content[start : start + size] for start in range(0, len(content), size))


def clock_rounds(other: Callable[[], int], own: Callable[[], int] = time.monotonic_ns) -> list[tuple[int, int, int]]:
    """Ask for another clock's time some times; return the rounds as `clock_offset` takes them."""
    return [(own(), other(), own()) for _ in range(_CLOCK_QUESTIONS)]


def clock_offset(questions: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """Return what is added to this side's clock to have the other's, and how far that may be off, in nanoseconds.

    The other's answer lies anywhere between question and answer: the middle of the fastest round is the best estimate.

    Args:
        questions: of each round the time when it was asked, the other's time, and the time when the answer came.
    """
    asked, told, answered = min(questions, key=lambda question: question[2] - question[0])
    return told - (asked + answered) // 2, (answered - asked + 1) // 2


class WorkerRecords(NamedTuple):
    """Records of a whole trace, the number of those that found no room, and the profile, where one was asked for."""

    content: bytes
    dropped: int
    profile: RunningProfile | None


class WorkerTrace:
    """Records of what this worker does in the attempts that its server traces. The thread that trains makes them.

    Attributes:
        on: the attempt under way is recorded.
    """

    def __init__(self) -> None:
        self.on = False
        self._recorder: TraceRecorder | None = None
        self._profile: RunningProfile | None = None
        self._step = 0
        self._is_last = False
        self._begun = 0
        self._finished: WorkerRecords | None = None

    def begin_attempt(
        self,
        step: int,
        most_records: int,
        is_last: bool,
        start_profile: Callable[[], RunningProfile | None] = lambda: None,
    ) -> None:
        """Record the attempt that begins, if the server asks for ``most_records`` of it at the most, not for 0.

        Args:
            step: committed steps before it, and one.
            most_records: most records of the whole trace.
            is_last: the trace ends with this attempt.
            start_profile: starts a profile of this worker when a trace begins, where the server asks for one.
        """
        if not most_records:
            self.give_up()  # as the server has
            return
        if self._recorder is None:
            from luwu.core.native import TraceRecorder  # plain torch trains a model of LuWu's without the native part

            self._profile = start_profile()
            self._recorder = TraceRecorder()
            self._recorder.start(most_records)
        self._step, self._is_last = step, is_last
        self.on = True
        self._begun = self.begin()

    def begin(self) -> int:
        """Return the begin of a span: the time now in nanoseconds, 0 while nothing is recorded."""
        return time.monotonic_ns() if self.on else 0

    def end(self, kind: Kind, begun: int, block: int = NONE, nbytes: int = 0) -> None:
        """Record a span that ends now, unless it began while nothing was recorded."""
        if begun and self._recorder is not None:
            self._recorder.add(kind, begun, time.monotonic_ns(), self._step, block, nbytes)

    def end_attempt(self) -> None:
        """Note that the attempt has ended: `take` gives the records of a trace whose last one it was."""
        if not self.on or self._recorder is None:
            return
        self.end(Kind.STEP, self._begun)
        self.on = False
        if self._is_last:
            if self._profile is not None:
                self._profile.stop()
            self._finished = WorkerRecords(*self._recorder.stop(), self._profile)
            self._recorder = self._profile = None

    def give_up(self) -> None:
        """Record no more, and forget what was recorded of a trace that has not ended."""
        self.on = False
        self._recorder = None
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def take(self) -> WorkerRecords | None:
        """Return the records of a whole trace, once; None: there is none.

        Another thread may call it.
        """
        finished, self._finished = self._finished, None
        return finished
