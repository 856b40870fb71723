"""Runs one operation and notes what it does to its folder: python -m tests.disk.record NAME FOLDER."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

from tests.disk import recorder
from tests.disk.image import Image
from tests.disk.power import History

TOP_NAME, LOG_NAME, BEFORE_NAME = "top", "log", "before"


class RecordingError(Exception):
    """An operation failed, or the log does not tell all that it did."""


def record(name: str, scratch: Path) -> History:
    """Run an operation in a process of its own, in a scratch folder; return what it did.

    Raises:
        RecordingError: it failed, or the log's calls do not make the folder that is there now.
    """
    command = [sys.executable, "-m", "tests.disk.record", name, str(scratch)]
    ended = subprocess.run(
        command, cwd=recorder.ROOT, env=recorder.environment(), capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise RecordingError(f"{name}: {ended.stderr[-3000:]}")
    top = scratch / TOP_NAME
    before = pickle.loads((scratch / BEFORE_NAME).read_bytes())
    history = History(before, recorder.read_log(scratch / LOG_NAME), str(top))
    if history.after().digest() != Image.read(top).digest():
        raise RecordingError(f"{name}: its calls do not make the folder that is there; the recorder missed some")
    return history


def main(name: str, scratch: Path) -> None:
    """Prepare and run one operation."""
    recorder.refuse_io_uring()
    from tests.disk.operations import OPERATIONS  # torch

    (operation,) = (each for each in OPERATIONS if each.name == name)
    top = scratch / TOP_NAME
    top.mkdir()
    operation.prepare(top)
    (scratch / BEFORE_NAME).write_bytes(pickle.dumps(Image.read(top)))
    with recorder.recording(top, scratch / LOG_NAME):
        operation.run(top)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
