"""The last words of a command on its standard error, through a pipe that never fills up."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress

SHOWN_BYTES = 2000
"""Bytes that are kept."""

_READ_BYTES = 1 << 16  # as many as a pipe holds


class LastWords:
    """Reads a pipe in a daemon thread until all that write to it have ended, and keeps the end of what they wrote.

    A program that the command has left behind may hold the pipe open, and nobody waits for it.

    Attributes:
        writes_to: descriptor for the command; close it with `started` once the command has it.
    """

    def __init__(self) -> None:
        self._reads_from, self.writes_to = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reads_from, False)
        self._kept = b""
        self._is_over = False
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="luwu-last-words", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Close this process's end for writing; also where the command could not be started."""
        os.close(self.writes_to)

    def line(self) -> str:
        """Return the last line until now, at most `SHOWN_BYTES` of it; returns at once."""
        self._read()  # what the thread has not read yet: a pipe holds no more
        return self._kept.decode("utf-8", "replace").strip().rpartition("\n")[2]

    def _run(self) -> None:
        waiting = select.poll()
        waiting.register(self._reads_from, select.POLLIN)
        while not self._is_over:
            waiting.poll()
            self._read()
        os.close(self._reads_from)

    def _read(self) -> None:
        with self._reading, suppress(BlockingIOError):
            if not self._is_over:
                data = os.read(self._reads_from, _READ_BYTES)
                self._is_over = not data
                self._kept = (self._kept + data)[-SHOWN_BYTES:]
