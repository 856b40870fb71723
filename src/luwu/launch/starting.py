"""Starts a process that reports to the launcher, a worker or the preparation of data, and ends it with the launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from luwu.core.exits import Exit
from luwu.core.room import Room, create
from luwu.launch.reports import REPORT_DESCRIPTOR, Report, ReportPipe


class Process(Protocol):
    """The functions of `Popen` that the launcher uses."""

    returncode: int | None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None: it has not ended."""

    def wait(self) -> int:
        """Wait for its end and return the exit status."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal."""


@dataclass
class ReportingProcess:
    """A process and the pipe of its reports."""

    process: Process
    pipe: ReportPipe


def start_reporting(
    start: Callable[[int, int], Process], log: Path, rank: int, on_report: Callable[[int, Report], None], room: Room
) -> ReportingProcess:
    """Start a process with a log and a pipe for its reports.

    Args:
        start: starts it, given the descriptors of its log and of its end of the pipe.
        log: file for the process's output, made anew.
        rank: the rank in its reports, see `ReportPipe`.
        on_report: called with each report, in a thread.
        room: the wait for a full disk where the log is made.

    Raises:
        OSError: the log or the process cannot be made. StoreSpaceError: there was no room for the log in time.
    """
    pipe = ReportPipe(rank, on_report)
    try:
        with room.retry(lambda: create(log), log) as output:
            process = start(output.fileno(), pipe.write_descriptor)
    finally:
        pipe.given_away()
    return ReportingProcess(process, pipe)


def start_module(module: str, job: Path, output: int, reports: int) -> Process:
    """Run a module in a session of its own, so that Ctrl-C reaches the launcher alone.

    Args:
        module: name of the module, which takes the job's file as its argument.
        job: the job's file.
        output: descriptor of its log.
        reports: descriptor of the socket that its reports go to.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, str(job)],
        env=os.environ | {REPORT_DESCRIPTOR: str(reports)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=[reports],
    )


PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the process that started it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(Exit.SERVER_LOST)
