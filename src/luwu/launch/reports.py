"""Workers' reports to the launcher: a pipe each, one JSON text a line. Warnings of the log travel there, too."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from luwu.errors import ServerError

REPORT_DESCRIPTOR = "LUWU_REPORT_DESCRIPTOR"
"""Environment variable of a worker: the open file that its reports go to."""

Report = dict[str, Any]
ReportFunction = Callable[[Report], None]


class WarningRelay(logging.Handler):
    """Reports what LuWu warns of, such as whom this worker waits for, so that the launcher shows it."""

    def __init__(self, report: ReportFunction) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        """Report one record's text; a launcher that has gone does not read it."""
        with suppress(ServerError):
            self._report({"kind": "say", "text": record.getMessage()})


def pipe_reporter(pipe: int) -> ReportFunction:
    """Reports through the launcher's pipe, from any thread; ServerError once the launcher has ended."""
    writing = threading.Lock()  # a long report takes several writes

    def report(words: Report) -> None:
        line = memoryview(f"{json.dumps(words)}\n".encode())
        try:
            with writing:
                while line:
                    line = line[os.write(pipe, line) :]
        except OSError as error:
            raise ServerError(f"the launcher of this process ended: {error}; run again to resume") from error

    return report


class ReportPipe:
    """The launcher's end of one worker's pipe: a thread hands each report on until the worker ends."""

    def __init__(self, rank: int, on_report: Callable[[int, Report], None]) -> None:
        self._read, self.write_descriptor = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(rank, on_report), name="luwu-reports", daemon=True)
        self._thread.start()

    def given_away(self) -> None:
        """The worker has its end; close this process's copy, or the pipe never ends."""
        os.close(self.write_descriptor)

    def _run(self, rank: int, on_report: Callable[[int, Report], None]) -> None:
        with open(self._read, encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):  # a worker that was killed may leave half a line
                    on_report(rank, json.loads(line))
