"""The queue of reports between their senders' threads and the launcher's own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

from luwu.launch.run_reports import Report
from luwu.launch.words import checked_report

LOOK_SECONDS = 0.1
"""Seconds between two looks of the launcher at workers that report nothing."""

REPORTS_WAITING = 4
"""Reports of each worker that may wait in the launcher. Later ones are not answered, and the run waits."""


class ReportQueue:
    """Reports of a run's workers.

    Args:
        workers: number of workers in the run.
    """

    def __init__(self, workers: int) -> None:
        self._reports: queue.Queue[tuple[int, Report]] = queue.Queue(REPORTS_WAITING * workers)
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        """True once no report is taken any more."""
        return self._over.is_set()

    def put(self, rank: int, report: Report) -> None:
        """Pass a report on, in its sender's thread. While the launcher waits for room the sender waits, too."""
        while not self._over.is_set():
            with suppress(queue.Full):
                self._reports.put((rank, report), timeout=LOOK_SECONDS)
                return

    def say(self, text: str) -> None:
        """Pass on a sentence for the user, in any thread."""
        self.put(0, {"kind": "say", "text": text})

    def take(self) -> Iterator[tuple[int, Report]]:
        """Yield the reports that are there; wait a moment for the first one. Raises WorkerLostError for a wrong one."""
        timeout = LOOK_SECONDS
        while True:
            try:
                rank, report = self._reports.get(timeout=timeout)
            except queue.Empty:
                return
            timeout = 0.0
            yield rank, checked_report(rank, report)

    def end(self) -> None:
        """Take no more reports; senders do not wait any longer."""
        self._over.set()
