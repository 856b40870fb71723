"""Starts a process that reports to the launcher: a worker, or the preparation of data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from luwu.core.room import Room, create
from luwu.launch.reports import REPORT_DESCRIPTOR, Report, ReportPipe


@dataclass
class ReportingProcess:
    """A process, the pipe of its reports, and where its log is."""

    process: subprocess.Popen[bytes]
    pipe: ReportPipe
    log: Path


def start_reporting(
    module: str,
    job: Path,
    log: Path,
    environment: dict[str, str],
    rank: int,
    on_report: Callable[[int, Report], None],
    room: Room,
) -> ReportingProcess:
    """Run a module in a session of its own, so that Ctrl-C reaches the launcher alone.

    Args:
        module: name of the module, which takes the job's file as its argument.
        job: the job's file.
        log: file for the process's output, made anew.
        environment: the process's environment.
        rank: the rank in its reports, see `ReportPipe`.
        on_report: called with each report, in a thread.
        room: the wait for a full disk where the log is made.

    Raises:
        OSError: the log or the process cannot be made. StoreSpaceError: there was no room for the log in time.
    """
    pipe = ReportPipe(rank, on_report)
    try:
        with room.retry(lambda: create(log), log) as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(job)],
                env=environment | {REPORT_DESCRIPTOR: str(pipe.write_descriptor)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[pipe.write_descriptor],
            )
    finally:
        pipe.given_away()
    return ReportingProcess(process, pipe, log)
