"""Makes files and the names in folders durable."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from luwu.store.own_files import drop_shared

_NOTHING_TO_SYNC = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP}


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(path: Path) -> Path:
    """Return the name that `whole_file` gives a file until it is whole; a crash may leave it."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def whole_file(path: Path) -> Iterator[FileIO]:
    """Open a file that gets this name when the ``with`` block ends without an error.

    Then its bytes and its name are durable.

    A file that had the name is replaced, and a copy made with hard links keeps it.
    """
    partial = unfinished(path)
    drop_shared(partial)
    try:
        with partial.open("wb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_all(file: FileIO, data: bytes) -> None:
    """Write all bytes to an unbuffered file, which may take fewer at once."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def sync_path(folder: Path) -> None:
    """Make the names of a folder and of all folders above it durable.

    Whoever made them may have been killed before they were durable. Left out are folders that this user may not read,
    and those of file systems without a sync, which keep no new names.
    """
    for above in folder.absolute().parents:
        try:
            sync_folder(above)
        except OSError as error:
            if error.errno not in _NOTHING_TO_SYNC:
                raise OSError(error.errno, error.strerror, str(above)) from error
