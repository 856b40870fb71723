"""Processes that are to be killed, forked from this one, which has imported torch and luwu once and has one thread.

A fork has what a fresh process has: a session, pipes and signal handlers of its own, random numbers of its own where
Python draws them at random, and no descriptor of its siblings. `command` makes one that executes a program instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError
from luwu.launch.starting import die_with

LIMIT_SECONDS = 120.0  # for whatever must happen: far longer than a busy machine needs, so it tells a hang
LOG_TAIL = 3000


def say(**line: Any) -> None:
    """Tell the benchmark something, in a process that it forked, with the machine's clock."""
    sys.stdout.write(json.dumps({**line, "at": time.monotonic()}) + "\n")
    sys.stdout.flush()


class Life:
    """A process from its fork to its end, and its messages.

    Attributes:
        said: the last value of everything that it said.
        texts: lines that are not JSON.
        counts: how often it said each thing.
        seconds: of each thing, the times from what was said before it.
        losses: bits of the losses by committed step.
        status: exit status, negative for a signal; None while it runs.
    """

    def __init__(self, name: str, log: Path, run: Callable[[], Any]) -> None:
        self.name, self._log = name, log
        self.said: dict[str, Any] = {}
        self.texts: list[str] = []
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {}
        self.losses: dict[int, str] = {}
        self.status: int | None = None
        self.began = self._last = time.monotonic()
        self._buffer = b""
        if len(list(Path("/proc/self/task").iterdir())) != 1:
            raise BenchmarkError("expected one thread in the process that forks, found more")
        self.output, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        driver = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _live(driver, write, log, run)
        os.close(write)
        self._process = os.pidfd_open(self.pid)
        os.set_blocking(self.output, False)

    @property
    def committed(self) -> int:
        """The last step that it knows to be committed."""
        return max(self.said.get("resumed", 0), self.said.get("committed", 0))

    def kill(self) -> None:
        """Send SIGKILL, wait for the end, and take what was still said."""
        self.signal(signal.SIGKILL)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens where it has ended."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        """Wait for its end, and return its status. Raises BenchmarkError where it does not come in time."""
        watch([self], lambda: self.ended(), f"{self.name} to end", seconds)
        assert self.status is not None
        return self.status

    def ended(self) -> bool:
        """Return true when it has ended; then all that it said was taken."""
        if self.status is None and select.select([self._process], [], [], 0)[0]:
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
            self.take()
            os.close(self._process)
            os.close(self.output)
        return self.status is not None

    def take(self) -> None:
        """Take what it has said so far."""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.output, 1 << 16):
                self._buffer += piece
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                self._hear(json.loads(line))
            except json.JSONDecodeError:
                self.texts.append(line.decode())

    def _hear(self, line: dict[str, Any]) -> None:
        at = line.pop("at", time.monotonic())
        for name in line:
            self.counts[name] += 1
            self.seconds.setdefault(name, []).append(at - self._last)
        self._last = at
        self.said.update(line)
        if "loss" in line:
            self.losses[line["committed"]] = line["loss"]

    def tail(self) -> str:
        """The end of its log, for an error."""
        text = self._log.read_text(errors="replace")[-LOG_TAIL:] if self._log.exists() else ""
        return f"--- {self.name} (process {self.pid}, status {self.status}), said {self.said}:\n{text}"


def command(name: str, log: Path, words: Sequence[str], environment: Mapping[str, str] | None = None) -> Life:
    """Start a life that executes `python WORDS`."""
    return Life(
        name, log, lambda: os.execve(sys.executable, [sys.executable, *words], {**os.environ, **(environment or {})})
    )


def _live(driver: int, write: int, log: Path, run: Callable[[], Any]) -> None:
    """Be the child: a fresh process, as far as it can tell."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nothing = os.open(os.devnull, os.O_RDONLY)
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for ours, place in ((nothing, 0), (write, 1), (errors, 2)):
            os.dup2(ours, place)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        die_with(driver)
        random.seed()
        status = run() or 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def watch(lives: Sequence[Life], until: Callable[[], bool], what: str, seconds: float = LIMIT_SECONDS) -> None:
    """Take what the processes say until something is so. Raises BenchmarkError, with their logs, after the time."""
    deadline = time.monotonic() + seconds
    while not until():
        left = deadline - time.monotonic()
        if left <= 0:
            tails = "\n".join(life.tail() for life in lives)
            raise BenchmarkError(f"waited {seconds:.0f} s for {what}\n{tails}")
        open_ones = [life for life in lives if life.status is None]
        files = [file for life in open_ones for file in (life.output, life._process)]
        select.select(files, [], [], min(left, 0.05))  # a look now and then at what no process says
        for life in open_ones:
            if not life.ended():
                life.take()


@contextlib.contextmanager
def ending(lives: list[Life]) -> Iterator[None]:
    """Kill, at the end of the block, those of the list that still live."""
    try:
        yield
    finally:
        for life in lives:
            if life.status is None:
                life.kill()


def processes_naming(text: str) -> list[int]:
    """Ids of this machine's living processes whose command line has a text, such as a folder that only one run has."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def shared_memory() -> set[str]:
    """Names of luwu's segments in this machine's shared memory; folders are no segments."""
    return {path.name for path in Path("/dev/shm").glob("luwu*") if path.is_file()}


def files_of(folder: Path) -> set[str]:
    """Files and sockets below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
