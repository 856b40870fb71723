"""A run of `luwu train` on this machine, and another run that tries to take its store, for `network_faults`."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import ROOT, BenchmarkError
from network_training import digest_of

sys.path.insert(0, str(ROOT))
from tests.integration.training import finish, prepare_small_run, start_run, steps_of, wait_for_steps

TEXT, OTHER_TEXT = "text", "other"
REFUSED, INTERRUPTED = 2, 130
STEPS_BEFORE = 3
LIMIT_SECONDS = 300


class TrainRun:
    """A run of a small model that trains from fault to fault; `rows` has them as `network_faults` shows them."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.rows: list[list[Any]] = []
        self._folder, self._steps = prepare_small_run(folder), steps
        (folder / OTHER_TEXT).write_text("".join(f"{number} comes before {number + 1}.\n" for number in range(3000)))

    def train(self) -> bool:
        """Train through the faults, and tell whether the run has every bit of an undisturbed one."""
        self._finish(self._start("undisturbed", "undisturbed-store"))
        process = self._start("disturbed", "store")
        wait_for_steps(self._folder, "disturbed", STEPS_BEFORE)
        process.send_signal(signal.SIGINT)
        self._finish(process, INTERRUPTED)
        self._meet_another_run()
        self._finish(self._start("disturbed", "store"))
        same_steps = steps_of(self._folder, "disturbed") == steps_of(self._folder, "undisturbed")
        return same_steps and digest_of(self._folder / "store") == digest_of(self._folder / "undisturbed-store")

    def _meet_another_run(self) -> None:
        """Start a run with other data on the store: it must be refused with the name of the store's own run."""
        at, began = len(steps_of(self._folder, "disturbed")), time.monotonic()
        error = self._finish(self._start("another", "store", OTHER_TEXT), REFUSED)
        if f"belongs to the run {self._folder}/disturbed" not in error:
            raise BenchmarkError(f"another run was refused without the name of the store's own: {error}")
        self.rows.append(["another run names the store", at, time.monotonic() - began, "is refused"])

    def _start(self, run: str, store: str, text: str = TEXT) -> subprocess.Popen[str]:
        return start_run(self._folder, run, "--data", text, "--store", store, "--steps", str(self._steps))

    def _finish(self, process: subprocess.Popen[str], expected: int = 0) -> str:
        """Wait for a run and return its standard error. Raises BenchmarkError unless its exit status is `expected`."""
        code, output, error = finish(process, LIMIT_SECONDS)
        if code != expected:
            raise BenchmarkError(
                f"luwu train ended with {code}, expected {expected}:\n{output[-1000:]}\n{error[-2000:]}"
            )
        return error
