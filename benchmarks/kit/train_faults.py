"""A run of `luwu train` on this machine: its disks fill up, and another run names its store. For `network_faults`."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.small_disk import NotMountedError, SmallDisk, mounted_disk, remove_copies, share_versions
from harness.training import finish, prepare_small_run, start_run, steps_of, wait_for_line, wait_for_steps
from kit.common import BenchmarkError, NotInstalledError, Options
from kit.network_training import digest_of

TEXT, OTHER_TEXT = "text", "other"
REFUSED, INTERRUPTED = 2, 130
STEPS_BEFORE = 3
LIMIT_SECONDS = 300


class TrainRun:
    """A run of a small model that trains from fault to fault; `rows` has them as `network_faults` shows them.

    Its run folder and its store are on small disks of their own; where none can be mounted, a run with --check leaves
    the full disks out.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self.rows: list[list[Any]] = []
        self._folder = prepare_small_run(folder, workers=options.size(2, check=1))
        self._options = options
        self._steps = options.effort(200, check=60)
        self._run, self._store = folder / "run-disk" / "run", folder / "store-disk" / "store"
        (folder / OTHER_TEXT).write_text("".join(f"{number} comes before {number + 1}.\n" for number in range(3000)))

    def train(self) -> bool:
        """Meet the faults, and tell whether the run has every bit of an undisturbed one."""
        undisturbed = self._folder / "undisturbed"
        self._finish(self._start(undisturbed, undisturbed / "store"))
        with ExitStack() as stack:
            disks = self._mount(stack)
            process = self._start(self._run, self._store)
            wait_for_steps(self._folder, str(self._run), STEPS_BEFORE)
            if disks:
                self._meet_full_disks(process, *disks)
            process.send_signal(signal.SIGINT)
            self._finish(process, INTERRUPTED)
            self._meet_another_run()
            self._finish(self._start(self._run, self._store))
            same_steps = steps_of(self._folder, str(self._run)) == steps_of(self._folder, str(undisturbed))
            return same_steps and digest_of(self._store) == digest_of(undisturbed / "store")

    def _mount(self, stack: ExitStack) -> list[SmallDisk]:
        """Mount the two disks; none, with --check, where that is not permitted."""
        try:
            return [stack.enter_context(mounted_disk(path.parent)) for path in (self._run, self._store)]
        except NotMountedError as error:
            self._options.leave_out("full disks", NotInstalledError(str(error)))
            return []

    def _meet_full_disks(self, process: subprocess.Popen[str], run_disk: SmallDisk, store_disk: SmallDisk) -> None:
        """Fill the run folder's disk, and while the run waits for it the store's; clear the one, then the other."""
        run_disk.fill()
        wait_for_line(process, f"paused: {self._run} needs at least")
        store_disk.fill()  # first: steps that end meanwhile take no room then
        share_versions(self._store)
        self._go_on("the run folder's disk is full", run_disk)
        wait_for_line(process, f"paused: {self._store} needs at least")
        remove_copies(self._store)
        self._go_on("the store's disk is full", store_disk)

    def _go_on(self, fault: str, disk: SmallDisk) -> None:
        """Clear a disk and wait for the next row of metrics."""
        made, began = len(steps_of(self._folder, str(self._run))), time.monotonic()
        disk.clear()
        wait_for_steps(self._folder, str(self._run), made + 1)
        self.rows.append([fault, made, time.monotonic() - began, "goes on"])

    def _meet_another_run(self) -> None:
        """Start a run with other data on the store: it must be refused, with the name of the run of that store."""
        at, began = len(steps_of(self._folder, str(self._run))), time.monotonic()
        error = self._finish(self._start(self._folder / "another", self._store, OTHER_TEXT), REFUSED)
        if f"belongs to the run {self._run}" not in error:
            raise BenchmarkError(f"another run was refused without the name of the store's own: {error}")
        self.rows.append(["another run names the store", at, time.monotonic() - began, "is refused"])

    def _start(self, run: Path, store: Path, text: str = TEXT) -> subprocess.Popen[str]:
        return start_run(self._folder, str(run), "--data", text, "--store", str(store), "--steps", str(self._steps))

    def _finish(self, process: subprocess.Popen[str], expected: int = 0) -> str:
        """Wait for its end; its errors. Raises BenchmarkError where its exit status is not the expected one."""
        code, output, error = finish(process, LIMIT_SECONDS)
        if code != expected:
            raise BenchmarkError(
                f"luwu train ended with {code}, expected {expected}:\n{output[-1000:]}\n{error[-2000:]}"
            )
        return error
