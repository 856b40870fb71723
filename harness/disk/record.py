"""Runs one operation and notes what it does to its folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.disk import recorder
from harness.disk.image import Image
from harness.disk.operations import OPERATIONS, Operation
from harness.disk.power import History
from harness.disk.processes import in_child, returned, scratch


class RecordingError(Exception):
    """The log does not tell all that an operation did."""


def operation_named(name: str) -> Operation:
    """Return the operation with a name."""
    (found,) = (each for each in OPERATIONS if each.name == name)
    return found


def prepared(operation: Operation, folder: Path) -> Image:
    """Return what lies in an operation's folder before it."""
    top = folder / "prepared"
    top.mkdir()
    returned(in_child(lambda: operation.prepare(top)), f"before {operation.name}")
    return Image.read(top)


@dataclass(frozen=True)
class Recording:
    """An operation that was run: its folder before it, all calls of it, and what they made of the folder."""

    operation: Operation
    before: Image
    calls: list[recorder.Call]
    history: History


@cache
def recorded(name: str) -> Recording:
    """Run one of `OPERATIONS`, the first time it is asked for; errors as `record`."""
    return record(operation_named(name))


def record(operation: Operation) -> Recording:
    """Run an operation in a child of this process, which is one of `recording_pool`.

    Raises:
        RecordingError: the log's calls do not make the folder that is there now.
    """
    with scratch() as folder:
        before = prepared(operation, folder)
        top, log = folder / "top", folder / "log"
        top.mkdir()
        before.write(top)
        returned(in_child(lambda: run(operation, top, log)), operation.name)
        calls = recorder.read_log(log)
        history = History(before, calls, str(top))
        if history.after().digest() != Image.read(top).digest():
            raise RecordingError(f"{operation.name}: its calls do not make the folder that is there")
    return Recording(operation, before, calls, history)


def run(operation: Operation, top: Path, log: Path) -> None:
    """Run an operation and note all of its calls."""
    with recorder.recording(top, log, calls_too=True):
        operation.run(top)
