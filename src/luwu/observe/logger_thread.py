"""A logger in a thread of its own: a package that waits for a disk or a server does not hold the run.

TensorBoard's writer, for example, waits for good once a full disk has ended its own thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

MOST_WAITING = 10_000
"""Records that wait for a logger; one that finds as many is not kept, and its logger is left out."""

CALL_SECONDS = 120.0
"""Longest time that a logger may take to open, or for one record, when a further record comes."""

CLOSE_SECONDS = 30.0
"""Longest time that the end of a run waits for all of its loggers."""


class Logger(Protocol):
    """A place for figures."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a step by name."""

    def close(self) -> None:
        """Write what is left."""


class LoggerThread:
    """Opens a logger, gives it its records in their order, and closes it, all in one daemon thread.

    Args:
        name: of the logger.
        make: opens it.
    """

    def __init__(self, name: str, make: Callable[[], Logger]) -> None:
        self._make = make
        self._failure: Exception | None = None
        self._records: queue.SimpleQueue[tuple[int, Mapping[str, float]] | None] = queue.SimpleQueue()
        self._is_left_out = False
        self._busy_since: float | None = time.monotonic()  # None: it waits for a record
        self._thread = threading.Thread(target=self._run, name=f"luwu-log-{name}", daemon=True)
        self._thread.start()

    def put(self, step: int, figures: Mapping[str, float]) -> None:
        """Let the logger have a step's figures; returns at once.

        Raises:
            TimeoutError: it does not answer: `MOST_WAITING` records wait, or one call takes over `CALL_SECONDS`.
            Exception: the logger has failed with it.
        """
        if self._failure is not None:
            raise self._failure
        if self._records.qsize() >= MOST_WAITING:
            raise TimeoutError(f"{MOST_WAITING} records wait for it")
        since = self._busy_since
        if since is not None and time.monotonic() - since > CALL_SECONDS:
            raise TimeoutError(f"it has not answered for {CALL_SECONDS:g} s")
        self._records.put((step, figures))

    def leave_out(self) -> None:
        """Give the logger no further record, not even one that waits; returns at once."""
        self._is_left_out = True
        self.end()

    def end(self) -> None:
        """Close the logger after its last record; returns at once."""
        self._records.put(None)

    def wait(self, deadline: float) -> None:
        """Wait until the logger is closed.

        Args:
            deadline: longest wait, as a time of ``time.monotonic()``.

        Raises:
            TimeoutError: it is not closed.
            Exception: the logger has failed with it.
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        if self._thread.is_alive():
            raise TimeoutError(f"it had not ended {CLOSE_SECONDS:g} s after the run")

    def _run(self) -> None:
        try:
            logger = self._make()
            while (record := self._next()) is not None:
                logger.log(*record)
            logger.close()
        except Exception as error:
            self._failure = error

    def _next(self) -> tuple[int, Mapping[str, float]] | None:
        self._busy_since = None
        record = self._records.get()
        self._busy_since = time.monotonic()
        return None if self._is_left_out else record
