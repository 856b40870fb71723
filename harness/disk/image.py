"""The contents of a folder in memory: read from a disk, changed, and written to another."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

TOP = 0
"""Number of the folder itself; every other file and folder has its own."""


class Image:
    """A folder with all that lies in it.

    Attributes:
        folders: by number, the names in a folder and the number of what each names.
        files: by number, a file's bytes; several names of one number are hard links.
    """

    def __init__(self) -> None:
        self.folders: dict[int, dict[str, int]] = {TOP: {}}
        self.files: dict[int, bytearray] = {}

    @classmethod
    def read(cls, folder: Path) -> Image:
        """Read a folder of a disk."""
        image = cls()
        numbers: dict[int, int] = {}

        def add(path: Path, into: dict[str, int]) -> None:
            for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
                inode = entry.inode()
                number = into[entry.name] = numbers.setdefault(inode, 1 + len(numbers))
                if entry.is_dir(follow_symlinks=False):
                    image.folders[number] = {}
                    add(Path(entry.path), image.folders[number])
                elif entry.is_file(follow_symlinks=False):
                    image.files[number] = bytearray(Path(entry.path).read_bytes())
                else:  # a socket, of a server that was killed
                    del into[entry.name]

        add(folder, image.folders[TOP])
        return image

    def walk(self) -> Iterator[tuple[str, int]]:
        """Return the path and the number of everything that can be reached, folders before what lies in them."""
        waiting = [("", TOP)]
        while waiting:
            prefix, folder = waiting.pop()
            for name, number in sorted(self.folders[folder].items()):
                yield prefix + name, number
                if number in self.folders:
                    waiting.append((f"{prefix}{name}/", number))

    def digest(self) -> str:
        """Return a hash of all names and bytes: equal images have equal ones."""
        found = hashlib.blake2b(digest_size=16)
        first: dict[int, str] = {}
        for path, number in self.walk():
            found.update(f"{path}\0{first.setdefault(number, path)}\0".encode())
            if number in self.files:
                found.update(self.files[number])
        return found.hexdigest()

    def write(self, folder: Path) -> None:
        """Write everything to an empty folder of a disk."""
        first: dict[int, Path] = {}
        for path, number in self.walk():
            at = folder / path
            if number in self.folders:
                at.mkdir()
            elif number in first:
                os.link(first[number], at)
            else:
                first[number] = at
                at.write_bytes(self.files[number])
