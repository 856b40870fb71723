"""Files that grow while they are read: metrics.jsonl, and logs."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from luwu.core.files import open_without_wait

READ_BYTES = 1 << 20
"""Bytes that are read at a time, so that a long file takes little memory."""

LONGEST_BYTES = 8 << 20
"""Bytes of a line, and some more, that are kept; the rest of a longer one is left out."""

CALL_BYTES = 32 << 20
"""Bytes without a line's end that one call reads, so that a look at a damaged file takes a moment."""

_MARK_BYTES = 256


class Tail:
    """Reads the whole lines that a file has got since the last call, from its begin where the file is another one.

    Anything but a regular file, such as a pipe, has no lines.

    Args:
        path: the file's path.
        most: bytes at a file's end that are read; what is before them is passed over. None: all of it is read.

    Attributes:
        restarts: number of times that the file was found to be another one, or other than it was.
    """

    def __init__(self, path: Path, most: int | None = None) -> None:
        self.path = path
        self.restarts = 0
        self._most = most
        self._file: tuple[int, int] | None = None  # device and inode
        self._offset = 0
        self._size = 0
        self._mark = b""  # the last bytes before the offset
        self._rest = bytearray()
        self._passes_over = False  # the rest is the end of a line whose begin was not read

    def lines(self) -> list[bytes]:
        """Return some of the lines that follow, without their ends.

        Empty at the end of the file, without one, and where a line has no end for long; `read_share` is then below 1.
        """
        self._size = 0  # nothing is left to read where there is no file any more
        try:
            with FileIO(self.path, opener=open_without_wait) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return []
                self._notice(file, status)
                return self._read(file)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return []

    @property
    def read_share(self) -> float:
        """Share of the file that has been read, by its size at the last read."""
        return min(1.0, self._offset / self._size) if self._size else 1.0

    def _read(self, file: FileIO) -> list[bytes]:
        file.seek(self._offset)
        for _ in range(CALL_BYTES // READ_BYTES):
            if not (data := file.read(READ_BYTES)):
                return []
            self._offset += len(data)
            self._mark = (self._mark + data)[-_MARK_BYTES:]
            first, *others = data.split(b"\n")
            if len(self._rest) < LONGEST_BYTES:
                self._rest += first
            if not others:
                continue
            lines = [bytes(self._rest), *others[:-1]][self._passes_over :]
            self._rest, self._passes_over = bytearray(others[-1]), False
            if lines:
                return lines
        return []

    def _notice(self, file: FileIO, status: os.stat_result) -> None:
        """Begin again in another file, which may have the inode's number of the one before, and in a rewritten one."""
        which = status.st_dev, status.st_ino
        self._size = status.st_size
        file.seek(self._offset - len(self._mark))
        if self._file is not None and (which != self._file or file.read(len(self._mark)) != self._mark):
            self.restarts += 1
            self._go_to(0)
        self._file = which
        if self._most is not None and status.st_size - self._offset > self._most:
            self._go_to(status.st_size - self._most)

    def _go_to(self, offset: int) -> None:
        self._offset, self._mark, self._passes_over = offset, b"", offset > 0
        self._rest.clear()
