"""A worker's log on a disk that may be full: a line waits for room, as all other writes of a run do."""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from pathlib import Path

from luwu.core.room import Room


class _RoomWriter(io.RawIOBase):
    """Writes all data to an open file, as soon as there is room."""

    def __init__(self, descriptor: int, path: Path, room: Room) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._path = path
        self._room = room

    def writable(self) -> bool:
        """Tell that the stream can be written to."""
        return True

    def write(self, data: object) -> int:
        """Write all bytes, and return how many there were."""
        left = memoryview(data).cast("B")  # type: ignore[arg-type]
        count = len(left)
        while left:
            left = left[self._room.retry(partial(os.write, self._descriptor, left), self._path, len(left)) :]
        return count


def log_stream(descriptor: int, path: Path, room: Room) -> io.TextIOWrapper:
    """Open a text stream to an open log; each line is written at once."""
    writer = _RoomWriter(descriptor, path, room)
    return io.TextIOWrapper(writer, encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[arg-type]


def wait_for_room_in_log(path: Path, room: Room) -> None:
    """Let the text that Python prints into this process's log wait for room on its disk."""
    sys.stdout = sys.stderr = log_stream(sys.stderr.fileno(), path, room)
