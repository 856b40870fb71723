"""A small run of `luwu train`, for tests that disturb it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

STEPS = 60


def workers_of(process):
    """Forks of its children's one template, or nobody where there is no template yet."""
    return [pid for template in children_of(process.pid) for pid in children_of(template)]


def children_of(pid):
    """Return the children of a process; none where it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def validation(output):
    return [line for line in output.splitlines() if line.startswith("validation loss")]
