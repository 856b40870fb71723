"""Processes that note what they do to their disk, and children of them that run one operation each.

A process of `recording_pool` has everything imported and has trained once, so a child begins within milliseconds. It
has one thread, so it may fork.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from harness.disk import recorder
from luwu.launch.starting import die_with

HANG_SECONDS = 60.0
"""A child that takes longer hangs: the slowest one takes a second."""


MEMORY = Path("/dev/shm")
"""Folders of operations lie in memory, where a sync takes no time."""

INTERNED = 360_000
INTERNED_KEPT = 160_000
"""Strings that a process interns, and those of them that it keeps; see `_settle_interned_strings`."""

_scratch = Path()
_interned: list[str] = []


@contextmanager
def recording_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of processes in which `recorder.recording` works; an error in the block ends what was begun."""
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with tempfile.TemporaryDirectory(prefix="disk-faults-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        with mock.patch.dict(os.environ, recorder.environment()):
            pool = ProcessPoolExecutor(processes, context, _warm_up, (Path(folder), os.getpid()))
            for started in [pool.submit(os.getpid) for _ in range(processes)]:  # with these variables
                started.result()
        with pool:
            try:
                yield pool
            except BaseException:
                for process in set(multiprocessing.active_children()).difference(others):
                    process.terminate()  # the pool would wait for all that was submitted, which takes minutes
                raise


@contextmanager
def scratch() -> Iterator[Path]:
    """Return a new folder in a process of `recording_pool`; it is removed at the end."""
    with tempfile.TemporaryDirectory(dir=_scratch) as folder:
        yield Path(folder)


def _warm_up(folder: Path, parent: int) -> None:
    global _scratch
    _scratch = folder
    die_with(parent)
    recorder.refuse_io_uring()
    from harness.disk.operations import train  # torch

    with scratch() as top:
        train(top, 2)
    _settle_interned_strings()
    gc.collect()
    gc.freeze()  # children collect what they made, not all of torch


def _settle_interned_strings() -> None:
    """Have Python's table of interned strings at a size that it keeps, however many come and go.

    pathlib interns the parts of each path. Once in thousands of operations that doubles the table, by 4 MB, which would
    look like a leak of the operation. A table that is a quarter full is made anew at the same size.
    """
    words = [sys.intern(f"interned {number}") for number in range(INTERNED)]
    _interned[:] = words[:INTERNED_KEPT]


@dataclass(frozen=True)
class Ended:
    """The end of a child.

    Attributes:
        value: what its function returned.
        error: the traceback of what it raised.
        signal: the number of the signal that ended it, or 0.
        hung: it was killed because it did not end.
    """

    value: Any = None
    error: str = ""
    signal: int = 0
    hung: bool = False


def in_child(function: Callable[[], Any]) -> Ended:
    """Run a function in a forked child; return how that ended."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with(parent)
        os.close(reading)
        _answer(function, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        hung = not select.select([answers], [], [], HANG_SECONDS)[0]  # a child that dies closes its end
        if hung:
            os.kill(child, signal.SIGKILL)
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if not answer:
        return Ended(signal=by_signal, hung=hung)
    value, error = pickle.loads(answer)
    return Ended(value, error, by_signal, hung)


def _answer(function: Callable[[], Any], writing: int) -> None:
    try:
        answer = (function(), "")
    except BaseException:
        answer = (None, traceback.format_exc())
    with os.fdopen(writing, "wb") as file:
        file.write(pickle.dumps(answer))
    os._exit(0)


def returned(ended: Ended, what: str) -> Any:
    """Return the value of a child that ended well; raises AssertionError with how it ended otherwise."""
    assert not (ended.error or ended.signal or ended.hung), f"{what}: {ended}"
    return ended.value
