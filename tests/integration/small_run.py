"""A small run of `luwu train`, for tests that disturb it."""

from __future__ import annotations

from pathlib import Path

STEPS = 60


def workers_of(process):
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    return [int(child) for child in Path(children).read_text().split()]


def validation(output):
    return [line for line in output.splitlines() if line.startswith("validation loss")]
