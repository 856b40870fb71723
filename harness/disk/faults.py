"""Lets each call of an operation fail once, and says what of that was not survived."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from harness.disk import recorder
from harness.disk.cutting import Promises, Wrong, promises_of
from harness.disk.operations import KILLED_MARK
from harness.disk.power import History, Moment, State
from harness.disk.processes import Ended, in_child, scratch
from harness.disk.record import Recording, recorded
from harness.disk.recorder import Call, Fault, Kind
from luwu.errors import LuwuError

NOT_CALLS = {Kind.MARK}
WITH_BYTES = {"write", "read"}
LEAK_BYTES = 64 * 1024
"""Memory that an operation may keep more of after a fault than without one: an error, its text, its traceback."""

THREAD_SECONDS = 5.0

TRIES = 5
"""Runs in which a call is waited for: what reads ahead may find a chunk in memory in one run and not in another."""

KILLED = 9


@dataclass
class FaultReport:
    """The faults of one operation.

    Attributes:
        points: calls that can fail.
        tried: how often each fault came.
        missed: faults whose call did not come again: its key differs between runs.
        went_on: operations that ended well in spite of the fault.
        typed: operations that ended with an error of luwu.errors.
    """

    operation: str
    points: int = 0
    tried: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    went_on: int = 0
    typed: int = 0
    wrong: list[Wrong] = field(default_factory=list)


@dataclass(frozen=True)
class Held:
    """Resources of a process: descriptors, threads, memory-mapped files of LuWu, bytes from malloc."""

    descriptors: int
    threads: int
    maps: int
    malloc_bytes: int


@dataclass(frozen=True)
class Outcome:
    """The end of an operation with a fault in a process that lives on."""

    met: bool
    error: str  # "" where it went on
    typed: bool
    before: Held
    after: Held


def fail_everywhere(name: str, *, seed: int, share: float = 1.0) -> FaultReport:
    """Let every call of an operation fail in each way, or a share of them chosen by chance.

    It runs in a process of `recording_pool`.
    """
    chance = random.Random(seed)
    with _trial(name) as trial:
        calls = own_calls(trial.recording.calls)
        report = FaultReport(name, sum(bool(faults_of(call)) for call in calls))
        for call in calls:
            for fault in faults_of(call):
                if chance.random() < share:
                    trial.run(call.key, fault, report)
        return report


def fail_at(name: str, points: Iterable[tuple[str, Fault]]) -> FaultReport:
    """Let the calls with these keys fail in these ways, each in a run of its own, as `fail_everywhere` does."""
    with _trial(name) as trial:
        report = FaultReport(name)
        for key, fault in points:
            trial.run(key, fault, report)
        return report


def fail_syncs_that_are_ignored(name: str) -> FaultReport:
    """Let all of Python's syncs fail in a program that ignores it: the control of this file, which must find wrong."""

    def ignoring(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        with suppress(OSError):
            real(descriptor)

    syncs = [call for call in own_calls(recorded(name).calls) if call.name == "fsync"]
    with mock.patch("os.fsync", ignoring):
        return fail_at(name, [(call.key, Fault.IO_ERROR) for call in syncs])


@contextmanager
def _trial(name: str) -> Iterator[_Trial]:
    with scratch() as folder:
        yield _Trial(recorded(name), promises_of(name), folder)


def own_calls(calls: list[Call]) -> list[Call]:
    """Return the calls of an operation, without those of a child that was killed before it."""
    ends = [place for place, call in enumerate(calls) if call.kind == Kind.MARK and call.name == KILLED_MARK]
    return calls[ends[-1] + 1 :] if ends else calls


def faults_of(call: Call) -> list[Fault]:
    """Return the ways in which a call may fail; only those with bytes can transfer a part of them."""
    if call.kind in NOT_CALLS:
        return []
    return [Fault.KILL, Fault.IO_ERROR, Fault.NO_SPACE, *([Fault.CUT] if call.name in WITH_BYTES else [])]


class _Trial:
    def __init__(self, recording: Recording, promises: Promises, folder: Path) -> None:
        self.recording = recording
        self._operation = recording.operation
        self._before = recording.before
        self._folder = folder
        self._promises = promises
        self._first_marks = recording.history.marks[:1]
        usual = self._attempt("", Fault.NONE).value
        self._usual_bytes = usual.after.malloc_bytes - usual.before.malloc_bytes

    def run(self, key: str, fault: Fault, report: FaultReport) -> None:
        """Run the operation with one fault, look at how it ended, and open what it left."""
        text = f"{fault.name} at {key}"
        for _ in range(TRIES):
            ended = self._attempt(key, fault)
            if ended.value is None or ended.value.met:
                break
        try:
            problem = self._problem(ended, fault, report, text) or self._left(text)
            if problem is None and fault in (Fault.IO_ERROR, Fault.NO_SPACE):
                problem = self._left_without_power(text)
            if problem:
                report.wrong.append(problem)
        finally:
            shutil.rmtree(self._top)

    @property
    def _top(self) -> Path:
        return self._folder / "faulty"

    @property
    def _log(self) -> Path:
        return self._folder / "faulty.log"

    def _attempt(self, key: str, fault: Fault) -> Ended:
        if self._top.exists():
            shutil.rmtree(self._top)
        self._top.mkdir()
        self._before.write(self._top)
        return in_child(lambda: run_with_fault(self._operation.run, self._top, self._log, key, fault))

    def _problem(self, ended: Ended, fault: Fault, report: FaultReport, text: str) -> Wrong | None:
        if ended.hung or ended.error:
            return self._promises.wrong(text, "it hung" if ended.hung else ended.error, [])
        if fault == Fault.KILL and ended.signal == KILLED:
            _count(report, fault)
            return None
        if ended.signal:
            return self._promises.wrong(text, f"signal {ended.signal}", [])
        outcome: Outcome = ended.value
        if not outcome.met:
            report.missed.append(text)
            return None
        _count(report, fault)
        report.went_on += not outcome.error
        report.typed += outcome.typed
        if outcome.error and not outcome.typed:
            return self._promises.wrong(text, outcome.error, [])
        leak = self._leak(outcome)
        return self._promises.wrong(text, leak, []) if leak else None

    def _leak(self, outcome: Outcome) -> str:
        before, after = outcome.before, outcome.after
        for what in ("descriptors", "threads", "maps"):
            if getattr(after, what) > getattr(before, what):
                return f"{what}: {getattr(before, what)} before, {getattr(after, what)} after"
        extra = after.malloc_bytes - before.malloc_bytes - self._usual_bytes
        return f"{extra} bytes more than without the fault" if extra > LEAK_BYTES else ""

    def _history(self) -> History:
        return History(self._before, recorder.read_log(self._log), str(self._top))

    def _left_without_power(self, text: str) -> Wrong | None:
        """Open what is left when all is lost that no sync had made durable: a sync that failed made nothing durable."""
        history = self._history()
        moment = Moment(history, history.end)
        lost = State(frozenset(), f"{text}, then a power cut")
        return self._promises.problem(moment, lost, history.marks or self._first_marks)

    def _left(self, text: str) -> Wrong | None:
        """Open what the operation left, in a process that knows nothing of it."""
        marks = self._history().marks or self._first_marks
        allowed = self._promises.allowed(marks, float("inf"))
        opened = in_child(lambda: self._promises.open(self._top))
        if opened.error or opened.hung or opened.signal:
            return self._promises.wrong(text, opened.error or str(opened), allowed)
        return None if opened.value in allowed else self._promises.wrong(text, str(opened.value), allowed)


def _count(report: FaultReport, fault: Fault) -> None:
    report.tried[fault.name] = report.tried.get(fault.name, 0) + 1


def run_with_fault(run: Callable[[Path], None], top: Path, log: Path, key: str, fault: Fault) -> Outcome:
    """Run an operation in this process, with one call that fails."""
    gc.collect()  # what the process that forked this one had dropped
    before = held()
    error, typed = "", False
    with recorder.recording(top, log):
        recorder.fail(key, fault)
        try:
            run(top)
        except LuwuError as found:
            error, typed = f"{type(found).__name__}: {found}", True
        except Exception as found:
            error = f"{type(found).__name__}: {found}"
        met = recorder.fault_met()
    gc.collect()
    end = time.monotonic() + THREAD_SECONDS
    while threads() > before.threads and time.monotonic() < end:  # one that was joined is gone a moment later
        time.sleep(0.001)
    return Outcome(met, error, typed, before, held())


def threads() -> int:
    """Return the number of this process's threads, Python's and others."""
    return _entries("/proc/self/task")


def _entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


def held() -> Held:
    """Return what this process holds."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Mallinfo
    info = library.mallinfo2()
    maps = sum("memfd:luwu" in line or "/dev/shm" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return Held(_entries("/proc/self/fd"), threads(), maps, info.uordblks + info.hblkhd)
