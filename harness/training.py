"""The luwu command as users run it, in a process of its own, and what its runs leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.network.namespaces import wait_until
from harness.warm import start_program

SMALL_RUN = """
[model]
layers = 2
hidden = 32
heads = 2
seq = 32
dropout = 0.1
[data]
validation_windows = 8
[run]
steps = 60
batch = 6
memory = "64MiB"
[sample]
length = 4
"""


def prepare_small_run(folder: Path, workers: int = 2) -> Path:
    """Write a text and the settings of a small run, as `start_small_run` wants them.

    Each worker takes two seconds of a processor to start, so tests that are not about workers have one.
    """
    (folder / "text").write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(3000)))
    settings = SMALL_RUN.replace("[run]", f"[run]\nworkers = {workers}")
    (folder / "settings.toml").write_text(f"{settings}\n[optimizer]\nlr = 1e-2\n")
    return folder


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a luwu command in a folder; `luwu train` has two processes at hand, for the data and for its workers."""
    return start_program(
        [sys.executable, "-m", "luwu.cli", *arguments], standbys=2 if arguments[0] == "train" else 0,
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def start_run(folder: Path, run: str, *flags: str) -> subprocess.Popen[str]:
    """`luwu train` with the folder's settings."""
    return start(folder, "train", "--config", "settings.toml", "--run", run, *flags)


def start_small_run(folder: Path, run: str, *flags: str) -> subprocess.Popen[str]:
    """`luwu train` of what `prepare_small_run` has written."""
    return start_run(folder, run, "--data", "text", *flags)


def finish(process: subprocess.Popen[str], at_most_seconds: float = 100) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    output, error = process.communicate(timeout=at_most_seconds)
    return process.returncode, output, error


def wait_for_steps(folder: Path, run: str, count: int) -> None:
    """Wait until a run has made ``count`` steps."""
    path = folder / run / "metrics.jsonl"
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= count, f"{count} steps of {run}", 60)


def wait_for_line(process: subprocess.Popen[str], start: str) -> str:
    """Read a command's output up to the first line that starts so; that line. Raises AssertionError at its end."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"it ended without a line that starts with {start!r}")


def metrics(folder: Path, run: str) -> list[dict[str, Any]]:
    """Return the rows that a run has written about its steps."""
    return [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]


def steps_of(folder: Path, run: str) -> list[tuple[int, int, float, float]]:
    """Step, attempt, loss and learning rate of each of a run's steps."""
    return [(row["step"], row["attempt"], row["loss"], row["lr"]) for row in metrics(folder, run)]
