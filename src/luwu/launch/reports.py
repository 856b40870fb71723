"""Workers' reports to the launcher: a socket for each worker, one JSON text a line, also for the log's warnings.

The launcher answers each report of a step with one byte, so that a worker is never many steps ahead of it.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from luwu.core.errors import LuwuError, ServerError, error_named
from luwu.core.room import RoomWait, SayRoom
from luwu.launch.words import parse_report

REPORT_DESCRIPTOR = "LUWU_REPORT_DESCRIPTOR"
"""Environment variable of a worker: the open file that its reports go to."""

STEPS_AHEAD = 4
"""Reports of steps that a worker sends before the first of them is answered."""

_ANSWER = b"."

Report = dict[str, Any]
ReportFunction = Callable[[Report], None]


def room_reporter(report: ReportFunction) -> SayRoom:
    """Return a function that reports to the launcher that this process waits for room on a full disk, or goes on."""

    def say(wait: RoomWait | None) -> None:
        words = None
        if wait is not None:
            words = {"folder": wait.folder, "needed_bytes": wait.needed_bytes, "until": wait.until}
        report({"kind": "room", "wait": words})

    return say


def room_wait(report: Report) -> RoomWait | None:
    """Return the wait in a report of `room_reporter`; None: there is room again."""
    return None if report["wait"] is None else RoomWait(**report["wait"])


def error_report(error: LuwuError) -> Report:
    """Make a report of a process's error, because a log on a full disk may lack it."""
    return {"kind": "error", "type": type(error).__name__, "message": str(error)}


def reported_error(report: Report) -> LuwuError:
    """Return the error in a report of `error_report`."""
    return error_named(report["type"])(report["message"])


class WarningRelay(logging.Handler):
    """Reports LuWu's warnings, such as whom this worker waits for, so that the launcher shows them."""

    def __init__(self, report: ReportFunction) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Report one record's text; an error because the launcher has ended is ignored."""
        with suppress(ServerError):
            self._report({"kind": "say", "text": record.getMessage()})


def pipe_reporter(pipe: int) -> ReportFunction:
    """Return a function that reports to the launcher, from any thread; ServerError if the launcher has ended.

    A report of a step returns when all but `STEPS_AHEAD` of the steps so far are answered; one thread reports steps.
    """
    writing = threading.Lock()  # a long report takes several writes
    unanswered = 0

    def report(words: Report) -> None:
        nonlocal unanswered
        line = memoryview(f"{json.dumps(words)}\n".encode())
        try:
            with writing:
                while line:
                    line = line[os.write(pipe, line) :]
            unanswered += words["kind"] == "step"
            while words["kind"] == "step" and unanswered > STEPS_AHEAD:
                unanswered -= _read_answers(pipe)
        except OSError as error:
            raise ServerError(f"the launcher of this process ended: {error}; run again to resume") from error

    return report


def _read_answers(pipe: int) -> int:
    """Wait for the next answers; return their number. Raises OSError if the launcher has ended."""
    answers = os.read(pipe, 64)
    if not answers:
        raise ConnectionResetError("it has closed the connection")
    return len(answers)


class ReportPipe:
    """The launcher's end of one worker's socket: a thread hands each report on until the worker ends."""

    def __init__(self, rank: int, on_report: Callable[[int, Report], None]) -> None:
        self._rank = rank
        self._own, given = socket.socketpair()
        self.write_descriptor = given.detach()
        self._thread = threading.Thread(target=self._run, args=(on_report,), name="luwu-reports", daemon=True)
        self._thread.start()

    def given_away(self) -> None:
        """Close this process's copy of the worker's end, or the pipe never ends."""
        os.close(self.write_descriptor)

    def wait(self, seconds: float) -> None:
        """Return when all of the worker's reports were handed on, or the time is over."""
        self._thread.join(seconds)

    def _run(self, on_report: Callable[[int, Report], None]) -> None:
        with (
            self._own,
            suppress(ConnectionResetError),
            self._own.makefile("r", encoding="utf-8", errors="replace") as lines,
        ):
            for line in lines:
                if not line.endswith("\n"):  # a worker that was killed may leave half a line
                    return
                report = parse_report(line)
                on_report(self._rank, report)
                if report["kind"] == "step":
                    with suppress(OSError):  # the worker has ended; what it said before is still read
                        self._own.send(_ANSWER)
