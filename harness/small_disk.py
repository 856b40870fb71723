"""A disk of a few MiB that a test fills and clears. Mounting it needs root."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from luwu.core.room import Room, RoomWait

MIB = 16
FILES = 4096

_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_PAGE = 4096


class SmallDisk:
    """A file system of `MIB` MiB that a test fills and clears.

    Attributes:
        path: the folder where it is mounted.
        said: the arguments of `say` since the last `waited`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[RoomWait | None] = []

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def fill(self) -> None:
        """Fill the disk; other programs may write there meanwhile."""
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            while free := os.statvfs(self.path).f_bavail * os.statvfs(self.path).f_frsize:
                with suppress(OSError):  # another writer took some of the room in between
                    os.posix_fallocate(file, os.fstat(file).st_size, free)
        finally:
            os.close(file)

    def refuse_files(self) -> None:
        """Leave no room for another file, which a disk may lack before it is full, until `clear`."""
        self._remount(FILES - os.statvfs(self.path).f_ffree)

    def clear(self) -> None:
        """Remove the filler, so that there is room again, for files, too."""
        self._filler.unlink(missing_ok=True)
        if not os.statvfs(self.path).f_ffree:
            self._remount(FILES)

    def _remount(self, files: int) -> None:
        subprocess.run(["mount", "-o", f"remount,nr_inodes={files}", self.path], check=True)

    def punch(self, path: Path) -> None:
        """Take the room of a file's contents, so that writing them needs it again."""
        file = os.open(path, os.O_RDWR)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            size = path.stat().st_size - _PAGE
            arguments = (ctypes.c_int(file), _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(_PAGE), ctypes.c_long(size))
            assert libc.fallocate(*arguments) == 0, os.strerror(ctypes.get_errno())
        finally:
            os.close(file)

    def say(self, wait: RoomWait | None) -> None:
        """Note the argument; when a pause begins, check that this disk caused it, and clear the disk."""
        self.said.append(wait)
        if wait is not None:
            assert Path(wait.folder).is_relative_to(self.path)
            self.clear()

    def room(self) -> Room:
        """Return a `Room` that waits until `say` has cleared the disk."""
        return Room(60.0, self.say)

    def waited(self) -> bool:
        """Tell whether there was a pause since the last call, and each pause ended."""
        said, self.said = self.said, []
        return bool(said) and [wait is None for wait in said] == [False, True] * (len(said) // 2)


class NotMountedError(Exception):
    """A small disk could not be mounted; the message says why."""


@contextmanager
def mounted_disk(path: Path) -> Iterator[SmallDisk]:
    """Mount a small disk at a new folder. Raises NotMountedError."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MIB}m,nr_inodes={FILES}", "luwu-test", str(path)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        raise NotMountedError(f"mounting a small disk needs root: {mounted.stderr.decode().strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def share_versions(store: Path) -> None:
    """Link a store's version files, as a copy would: the next step needs room for a file of its own."""
    for path in store.glob("version-?.luwu"):
        os.link(path, path.with_suffix(".copy"))


def remove_copies(store: Path) -> None:
    """Remove what `share_versions` made."""
    for path in store.glob("version-?.copy"):
        path.unlink()
