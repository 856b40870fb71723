"""A small run of `luwu train`, for tests that disturb it."""

from __future__ import annotations

from pathlib import Path

from harness.training import finish, start_small_run, steps_of

STEPS = 60


def workers_of(process):
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    return [int(child) for child in Path(children).read_text().split()]


def validation(output):
    return [line for line in output.splitlines() if line.startswith("validation loss")]


def train_undisturbed(folder):
    """Rows and validation line of a run that nobody touched; what it said is in undisturbed-said."""
    code, output, error = finish(start_small_run(folder, "undisturbed"))
    assert code == 0, error
    (folder / "undisturbed-said").write_text(output)
    return steps_of(folder, "undisturbed"), validation(output)
