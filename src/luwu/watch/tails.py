"""Files that grow while they are read: metrics.jsonl, and logs."""

from __future__ import annotations

import os
from pathlib import Path

READ_BYTES = 1 << 20
"""Bytes that are read at a time, so that a long file takes little memory."""


class Tail:
    """Reads the whole lines that a file has got since the last call, from its begin where the file is another one.

    Attributes:
        restarts: number of times that the file was found to be another one, or shorter than before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restarts = 0
        self._file: tuple[int, int] | None = None  # device and inode
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Return some of the lines that follow, without their ends; empty at the end of the file, or without one."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                self._notice(status)
                file.seek(self._offset)
                data = file.read(READ_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if data and not lines:  # a line that is longer than one piece
            return self.lines()
        return lines

    def _notice(self, status: os.stat_result) -> None:
        file = status.st_dev, status.st_ino
        if self._file is not None and (file != self._file or status.st_size < self._offset):
            self.restarts += 1
            self._offset, self._rest = 0, b""
        self._file = file
