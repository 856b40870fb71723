"""Pauses on a full disk: a write that finds no room is reported and tried again until there is room or time is over."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from luwu.core.errors import LuwuError, StoreSpaceError
from luwu.core.files import drop_shared, unshare, whole_file, write_all

DISK_FULL_WAIT_SECONDS = 3600.0
"""Default of the longest time that a run waits for room."""

LOOK_SECONDS = 0.25
"""Pause between two attempts: no file system tells when it has room again."""

ResultT = TypeVar("ResultT")

log = logging.getLogger("luwu.room")


@dataclass(frozen=True)
class RoomWait:
    """A pause: ``folder`` needs at least ``needed_bytes``, 0 where nobody knows; ``until`` is a `time.time`.

    ``at_end``: a run has ended, and steps that are in memory alone wait.
    """

    folder: str
    needed_bytes: int
    until: float
    at_end: bool = False

    def __str__(self) -> str:
        needed = f"at least {self.needed_bytes:,} bytes" if self.needed_bytes else "room"
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.until))
        hint = "; steps that are in memory alone wait for it: Ctrl-C or SIGTERM once more ends without them"
        return (
            f"paused: {self.folder} needs {needed}, and its disk is full; free some space there: it goes on by itself "
            f"when there is room, and waits until {clock}{hint if self.at_end else ''}"
        )


SayRoom = Callable[[RoomWait | None], None]
"""Function that is called when a pause begins, and with None when there is room again."""


def log_room(wait: RoomWait | None) -> None:
    """Log the beginning of a pause, or its end."""
    log.warning("%s", wait or "there is room on the disk again; it goes on")


class WaitStoppedError(LuwuError):
    """Raised when the wait for room on a full disk is stopped because somebody asked for an end."""

    code = "LUWU-208"


class Room:
    """Retries writes that find a disk full, for a limited time, and reports the pauses.

    Args:
        wait_seconds: the longest wait after the first attempt that finds no room; 0: no wait.
        say: called when a pause begins and ends.
        stopped: tells whether waits have to end; asked before each new attempt.
    """

    def __init__(
        self, wait_seconds: float, say: SayRoom = log_room, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._wait_seconds = wait_seconds
        self._say = say
        self._stopped = stopped

    def retry(self, attempt: Callable[[], ResultT], path: Path, needed_bytes: int = 0) -> ResultT:
        """Call `attempt`, which must leave nothing half-done, until it finds room; return its result.

        Args:
            attempt: writes to `path`.
            path: a file, or a folder.
            needed_bytes: the room that it needs at least; 0 where nobody knows.

        Raises:
            StoreSpaceError: the disk is still full when the time is over. WaitStoppedError: `stopped` was true.
            Others: other errors of `attempt`.
        """
        deadline: float | None = None
        while True:
            try:
                result = attempt()
            except (OSError, StoreSpaceError) as error:
                if not is_full(error):
                    raise
                if deadline is None:
                    deadline = time.monotonic() + self._wait_seconds
                    if self._wait_seconds:
                        self._say(RoomWait(str(_folder_of(path)), needed_bytes, time.time() + self._wait_seconds))
                if time.monotonic() >= deadline:
                    raise (error if isinstance(error, StoreSpaceError) else no_room(path, error)) from error
                if self._stopped():
                    raise WaitStoppedError(f"{path}: stopped while it waited for room") from error
                time.sleep(LOOK_SECONDS)
            else:
                if deadline is not None:
                    self._say(None)
                return result

    def result(
        self, future: Future[ResultT], again: Callable[[], Future[ResultT]], path: Path, needed_bytes: int = 0
    ) -> ResultT:
        """Return the result of another thread's write; if it found no room, make it `again` with `retry`."""
        try:
            return future.result()
        except (OSError, StoreSpaceError) as error:
            if not is_full(error) or not self._wait_seconds:
                raise
        return self.retry(lambda: again().result(), path, needed_bytes)  # at once: there may be room by now

    def append(self, file: FileIO, data: bytes, path: Path) -> None:
        """Append all of the data to an unbuffered file, with `retry`; a failed attempt leaves none of it."""
        self.retry(lambda: _append(file, data), path, len(data))

    def write_file(self, path: Path, data: str | bytes, mode: int = 0o666) -> None:
        """Write or replace a file, whole or not at all, with `retry`; it gets the mode without the umask's bits."""
        encoded = data.encode() if isinstance(data, str) else data
        self.retry(lambda: _replace(path, encoded, mode), path, len(encoded))


NO_WAIT = Room(0.0)
"""Never waits: a full disk is an error at once."""


def append_line(path: Path, line: str) -> bool:
    """Append a line to a file, whole or not at all; return False where it cannot be written, as on a full disk.

    A copy made with hard links keeps the file as it was.
    """
    with suppress(OSError, LuwuError):
        unshare(path)
        with path.open("ab", buffering=0) as file:
            NO_WAIT.append(file, f"{line}\n".encode(), path)
        return True
    return False


def is_full(error: BaseException) -> bool:
    """Tell whether an error says that a disk, or a user's share of it, is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, StoreSpaceError)


def no_room(path: Path | str, error: OSError, action: str = "write") -> StoreSpaceError:
    """Return the typed error for a full disk."""
    return StoreSpaceError(f"cannot {action} {path}: {error.strerror}; free some space or name another folder")


def create(path: Path) -> FileIO:
    """Open a file for writing from its beginning, without a buffer; a copy made with hard links keeps the old file."""
    drop_shared(path)
    return path.open("wb", buffering=0)


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _append(file: FileIO, data: bytes) -> None:
    start = file.seek(0, os.SEEK_END)
    try:
        write_all(file, data)
    except OSError:
        file.truncate(start)
        file.seek(start)
        raise


def _replace(path: Path, data: bytes, mode: int) -> None:
    with whole_file(path, mode) as file:
        write_all(file, data)


class RoomWatch:
    """Reports each pause once, and its end. Call `look` again and again.

    Args:
        say: called when a pause begins and ends.
        gives_up: tells whether somebody wants the wait for room at a server's end to be given up.
    """

    def __init__(self, say: SayRoom, gives_up: Callable[[], bool] = lambda: False) -> None:
        self._say = say
        self._gives_up = gives_up
        self._last: RoomWait | None = None

    def look(self, stats: Mapping[str, Any]) -> None:
        """Compare a native server's stats with the last ones, and report a difference."""
        self._look(stats, at_end=False)

    def goes_on(self, stats: Mapping[str, Any]) -> bool:
        """Look at a server that ends, and return False if it waits for room, and the wait is given up.

        A pause that was reported before is reported again, because now it can be given up. Nobody who cannot be told
        loses steps for that.
        """
        try:
            self._look(stats, at_end=True)
        except (Exception, SystemExit) as error:  # the latter is a display's whose pipe is broken
            log.warning("%s (it could not be shown: %s)", self._last or "it goes on", error)
        return stats.get("waits_for_room") is None or not self._gives_up()

    def _look(self, stats: Mapping[str, Any], *, at_end: bool) -> None:
        wait = None
        if (found := stats.get("waits_for_room")) is not None:
            folder, needed_bytes, until = found
            wait = RoomWait(folder, needed_bytes, until, at_end)
        if wait != self._last:
            self._last = wait
            self._say(wait)
