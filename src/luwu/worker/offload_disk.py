"""Activations in a file without a name: its room is free again after every backward, and after any crash."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from luwu.core.errors import ConfigError, StoreError, StoreSpaceError
from luwu.core.room import NO_WAIT, Room, is_full

_WRITES_AHEAD = 2
"""Most tensors that wait to be written: a disk that is slower than the model holds it up, and memory stays bounded."""

FilePlace = tuple[int, int]
"""Offset and length in the file, bytes."""


class _Write(NamedTuple):
    """A write that may not have ended yet."""

    data: Tensor
    version: int
    offset: int
    future: Future[None]


class DiskShelf:
    """Writes and reads in a thread of its own, and asks the page cache to drop written data.

    Args:
        folder: the file's folder.
        device: the tensors' device.
        room: the wait for a full disk.

    Raises:
        ConfigError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, device: torch.device, room: Room = NO_WAIT) -> None:
        self._folder = folder
        self._room = room
        self._device = device
        try:
            self._file = _nameless_file(folder)
        except OSError as error:
            raise ConfigError(
                f"offload: expected a folder to write activations to, found {folder}: {error.strerror}; name another"
            ) from error
        weakref.finalize(self, os.close, self._file)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="luwu-offload")
        self._end_bytes = 0
        self._writing: deque[_Write] = deque()

    def put(self, data: Tensor) -> FilePlace:
        """Have the thread write the data, and wait while it is too far behind.

        Raises:
            StoreSpaceError: the disk is full. StoreError: it refuses to write.
        """
        while len(self._writing) >= _WRITES_AHEAD:
            self._finish(self._writing.popleft())
        place = self._end_bytes, data.numel()
        self._end_bytes += data.numel()
        host = data.cpu()
        version = host._version  # version of the written tensor: on a GPU a copy
        future = self._thread.submit(self._write, host, version, place[0])
        self._writing.append(_Write(host, version, place[0], future))
        return place

    def fetch(self, place: FilePlace) -> Callable[[], Tensor]:
        """Have the thread read, after what it writes.

        Raises:
            StoreSpaceError, StoreError: as `put`, for what was still being written.
        """
        while self._writing:
            self._finish(self._writing.popleft())
        reading = self._thread.submit(self._read, place)
        return lambda: reading.result().to(self._device)

    def clear(self) -> None:
        """Free the file's room; writes that have not begun are dropped."""
        for waiting in self._writing:
            waiting.future.cancel()
        self._writing.clear()
        self._end_bytes = 0
        self._thread.submit(os.ftruncate, self._file, 0).result()

    def _finish(self, write: _Write) -> None:
        """Wait for a write; if the disk is full, let the thread write again until there is room."""

        def again() -> Future[None]:
            return self._thread.submit(self._write, write.data, write.version, write.offset)

        self._room.result(write.future, again, self._folder, write.data.numel())

    def _write(self, data: Tensor, version: int, offset: int) -> None:
        left = data.numpy().data
        start = offset
        try:
            while left:
                written = os.pwrite(self._file, left, start)
                start, left = start + written, left[written:]
            os.posix_fadvise(self._file, 0, start, os.POSIX_FADV_DONTNEED)  # starts writing; what is written is let go
        except OSError as error:
            raise self._error(error, "write", data.numel()) from error
        if data._version != version:
            raise RuntimeError("a block's input was changed in place while it was put away for backward")

    def _read(self, place: FilePlace) -> Tensor:
        offset, length = place
        data = torch.empty(length, dtype=torch.uint8)
        left = data.numpy().data
        try:
            while left:
                count = os.preadv(self._file, [left], offset)
                if not count:
                    raise OSError(errno.EIO, "the file has ended")
                offset, left = offset + count, left[count:]
            os.posix_fadvise(self._file, *place, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise self._error(error, "read", length) from error
        return data

    def _error(self, error: OSError, what: str, nbytes: int) -> StoreError | StoreSpaceError:
        if is_full(error):
            return StoreSpaceError(
                f"offload: expected room for {nbytes} more bytes of activations in {self._folder}, found none after "
                f"{self._end_bytes}: {error.strerror}; free some, name another folder, or use a smaller batch"
            )
        return StoreError(f"offload: cannot {what} {nbytes} bytes of activations in {self._folder}: {error.strerror}")


def _nameless_file(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    number, name = tempfile.mkstemp(prefix=".luwu-activations-", dir=folder)  # this file system knows no better
    Path(name).unlink()
    return number
