"""A short run of `luwu train` that is watched: seconds of steps, bytes that the server moved, memory of all processes.

`python -m luwu.launch.trial` reads a `TrialSettings` from standard input, trains in a process of its own, and prints a
`Trial`, so that whoever asks shares neither memory nor threads with what is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from luwu.core.errors import LuwuError
from luwu.core.exits import Exit
from luwu.launch.folder import RunFolder
from luwu.launch.job import write_error
from luwu.launch.local import LocalRun
from luwu.launch.settings import Settings
from luwu.launch.words import typed_error
from luwu.observe.display import Traffic
from luwu.observe.memory import memory_of, process_tree
from luwu.observe.meter import Meter

WATCHED_STEPS = 3
"""Number of steps at the end in which memory is watched, which takes time."""

REST = 4
"""Rest of the watch after a look at memory, in times of the look."""


class TrialSettings(BaseModel):
    """Settings of a trial.

    ``settings.run.steps`` counts the first steps, which are not measured, and the watched ones.
    """

    settings: Settings
    folder: str
    warm_steps: int = 3


class Trial(BaseModel):
    """The measured figures of a short run.

    Bytes read and written are a step's average, from and to the store. They are counted when a step is reported, when
    the next may have begun: their sum over all measured steps is true within one step. Memory is the peak while
    training.
    """

    step_seconds: list[float]
    bytes_read: float
    bytes_written: float
    store_bytes: int
    server_bytes: int
    workers_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Bytes of the server and all workers."""
        return self.server_bytes + self.workers_bytes


def run_trial(wanted: TrialSettings) -> Trial:
    """Train in a process of its own.

    Raises:
        LuwuError: what the run failed with, or what is left of a process that died.
    """
    done = subprocess.run(
        [sys.executable, "-m", "luwu.launch.trial"],
        input=wanted.model_dump_json(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise typed_error(done.stderr) or LuwuError(f"a trial run ended with {done.returncode}: {done.stderr[-2000:]}")
    return Trial.model_validate_json(done.stdout.splitlines()[-1])


class Watch:
    """Display that shows nothing: it notes the times of steps and the server's counts."""

    def __init__(self, wanted: TrialSettings) -> None:
        self._first = wanted.warm_steps
        self._last = wanted.settings.run.steps - WATCHED_STEPS
        self._steps = wanted.settings.run.steps
        self.seconds: list[float] = []
        self._counts: list[Traffic] = []
        self._memory = MemoryPeak()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self._memory.stop()

    def say(self, text: str) -> None:
        """Ignore the text."""

    def stage(self, text: str, detail: str = "") -> None:
        """Ignore the stage."""

    def step(self, meter: Meter, server: Traffic) -> None:
        """Note a step that is over."""
        assert meter.last is not None
        step = meter.last.step
        if self._first < step <= self._last:
            self.seconds.append(meter.last.seconds)
        if self._first <= step <= self._last:
            self._counts.append(server)
        if step == self._last:
            self._memory.start()
        elif step == self._steps:
            self._memory.stop()

    def alerts(self, standing: Mapping[str, str]) -> None:
        """Ignore the alerts."""

    def result(self, store: Path) -> Trial:
        """Return the result, once the run is over."""
        first, last = self._counts[0], self._counts[-1]
        read, written = ((last[name] - first[name]) / len(self.seconds) for name in ("bytes_read", "bytes_written"))
        return Trial(
            step_seconds=self.seconds,
            bytes_read=read,
            bytes_written=written,
            store_bytes=sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file()),
            server_bytes=self._memory.own_bytes,
            workers_bytes=self._memory.children_bytes,
        )


class MemoryPeak:
    """Most memory that this process and its children had together while they were watched, by a thread."""

    def __init__(self) -> None:
        self.own_bytes = self.children_bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="luwu-memory", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        own = os.getpid()
        while not self._stopped.is_set():
            started = time.monotonic()
            children = memory_of(process_tree(own)[1:])
            mine = memory_of([own])
            if mine + children > self.own_bytes + self.children_bytes:
                self.own_bytes, self.children_bytes = mine, children
            self._stopped.wait(REST * (time.monotonic() - started))


def main() -> int:
    """Train and print the result."""
    wanted = TrialSettings.model_validate_json(sys.stdin.read())
    folder = RunFolder(Path(wanted.folder))
    watch = Watch(wanted)
    try:
        with watch:
            LocalRun(wanted.settings, folder, watch).run()
    except LuwuError as error:
        write_error(error)
        return Exit.FAILED
    sys.stdout.write(watch.result(folder.path / "store").model_dump_json() + "\n")
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
