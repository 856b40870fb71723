"""Makes files and the names in folders durable, and keeps copies that were made with hard links (`cp -al`) as they are.

A file that is made under another name and then renamed needs `drop_shared` only for that other name: a crash may have
left a file with it, and the copy may share that file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from luwu.core.errors import ConfigError

PRIVATE_MODE = 0o600
"""Mode of a file that this user alone may read."""

_LONGEST_NAME = 255  # bytes, on Linux's file systems

_NOTHING_TO_SYNC = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP}


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(path: Path) -> Path:
    """Return the name that `whole_file` gives a file until it is whole; a crash may leave it.

    A name that is as long as names may be has no room for an ending: then it is a short one.
    """
    name = f".{path.name}.partial"
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f".{zlib.crc32(os.fsencode(path.name)):08x}.partial"
    return path.with_name(name)


def open_without_wait(path: str, flags: int) -> int:
    """Open a file for `FileIO`; a pipe without a writer would hold up whoever opens it otherwise. Raises OSError."""
    return os.open(path, flags | os.O_NONBLOCK)


@contextmanager
def replaced_file(path: Path, partial: Path, mode: int = 0o666) -> Iterator[FileIO]:
    """Open a file that gets its name when the block ends without an error; nothing is synced.

    A file that had the name is replaced, and a copy made with hard links keeps it.

    Args:
        path: the name.
        partial: the name until then, in the same folder; a crash may leave a file with it.
        mode: of the file, without the bits of the umask.
    """
    require_file(partial)
    partial.unlink(missing_ok=True)  # it may have another mode
    try:
        with FileIO(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[FileIO]:
    """Open a file as `replaced_file` does; all of it is durable when the block has ended, and the name."""
    with replaced_file(path, unfinished(path), mode) as file:
        yield file
        os.fsync(file.fileno())
    sync_folder(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Write or replace a file, whole or not at all, for readers on this machine: a power cut may lose it."""
    with replaced_file(path, unfinished(path)) as file:
        write_all(file, text.encode())


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


def require_file(path: Path) -> None:
    """Refuse a folder, a pipe or a device in the place of a file, as opening a pipe may wait for ever.

    Raises:
        ConfigError: one is there; a missing file is none.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "a pipe or a device"
            raise ConfigError(f"{path}: expected a file, found {what}; move it away")


def drop_shared(path: Path) -> None:
    """Remove this name of a file that has another one; call it before the file is written from its beginning.

    Raises ConfigError where no file is there, see `require_file`; so does `unshare`.
    """
    require_file(path)
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            path.unlink()


def unshare(path: Path) -> None:
    """Replace a file that has another name by a copy; call it before the file is appended to or changed in place."""
    require_file(path)
    with suppress(FileNotFoundError):
        if path.stat().st_nlink > 1:
            own = path.with_name(path.name + ".own")
            own.unlink(missing_ok=True)
            shutil.copy2(path, own)
            own.replace(path)
