"""Bytes that a run has written to its store in all of its starts, for the wear of the disks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from luwu.core.errors import LuwuError
from luwu.core.quantities import SIZE_LIMIT
from luwu.core.room import NO_WAIT

SAVE_SECONDS = 10.0
"""Time between two saves: a launcher that is killed loses what was written since the last one from the count."""


class WrittenBytes:
    """Counts the bytes in a file of the run folder. One that cannot be read or written counts from 0: no run fails.

    Args:
        path: the file.
        clock: returns the time in seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._before = read_written(path)
        self._saved_at = clock()

    def note(self, since_start: int) -> None:
        """Note the bytes that were written since this start, and save them once in a while."""
        if self._clock() - self._saved_at >= SAVE_SECONDS:
            self.end(since_start)

    def end(self, since_start: int) -> int:
        """Save the count, and return the bytes of all starts."""
        total = self._before + since_start
        self._saved_at = self._clock()
        if since_start:
            with suppress(OSError, LuwuError):
                NO_WAIT.write_file(self._path, json.dumps({"bytes": total}) + "\n")
        return total


def read_written(path: Path) -> int:
    """Return the bytes that all starts of a run have written, as they were saved; 0 where nobody knows."""
    try:
        count = json.loads(path.read_text(encoding="utf-8"))["bytes"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < SIZE_LIMIT else 0
