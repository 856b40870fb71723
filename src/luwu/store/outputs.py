"""Files of a checkpoint on their way out: streamed, checksummed, each complete or not there; finished ones are kept.

An output folder has a journal beside its files: what they come from, and the checksum of each that is finished. The
same export into the same folder again goes on after them; another export is refused.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from luwu.core import native
from luwu.core.errors import ConfigError, StoreSpaceError
from luwu.core.files import replaced_file, sync_path, unfinished
from luwu.core.room import NO_WAIT, Room
from luwu.core.units import bytes_text
from luwu.store.folders import write_json
from luwu.store.parts import is_file, refused

JOURNAL_NAME = "luwu-export.json"
READ_BYTES = 8 * 2**20
NAMES_SHOWN = 10

_logger = logging.getLogger(__name__)


class OutputFolder:
    """A folder that an export writes to.

    Args:
        path: the folder; made where missing.
        origin: values that tell this export from another one; JSON can hold them.
        room: the wait for a full disk.

    Raises:
        ConfigError: the folder holds something else. StorePermissionError, StoreError: it cannot be used.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any], room: Room = NO_WAIT) -> None:
        self.path = path
        self._room = room
        self._journal = path / JOURNAL_NAME
        try:
            path.mkdir(parents=True, exist_ok=True)
            sync_path(path)
            others = [each.name for each in path.iterdir() if each != unfinished(self._journal)]
            found = json.loads(self._journal.read_text()) if JOURNAL_NAME in others else None
        except OSError as error:
            raise refused("use", path, error) from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self._journal}: expected JSON, found {error}; remove the folder") from error
        origin = json.loads(json.dumps(dict(origin)))
        if found is None and others:
            raise ConfigError(f"{path}: expected an empty folder, found {_listed(others)}; name another folder")
        if found is not None and not _is_journal(found):
            raise ConfigError(
                f"{self._journal}: expected an export's origin and its files' checksums, found others: it is damaged; "
                "remove the folder"
            )
        if found is not None and found["origin"] != origin:
            raise ConfigError(
                f"{path}: holds another export: {_differences(found['origin'], origin)}; remove it, or name "
                "another folder"
            )
        self._origin = origin
        self._files: dict[str, dict[str, Any]] = {} if found is None else dict(found["files"])
        self._note()

    def say_others(self, own: Iterable[str] = ()) -> None:
        """Log the names of what lies in the folder and is not of this export, which leaves it as it is.

        Args:
            own: names of the export's files that were not made with `write`.
        """
        try:
            names = {each.name for each in self.path.iterdir()}
        except OSError as error:
            raise refused("use", self.path, error) from error
        others = names - {JOURNAL_NAME, *self._files, *own}
        if others:
            _logger.warning(
                "%s holds files that are not of this export, and stay as they are: %s; remove them if a program that "
                "loads the folder must not see them",
                self.path,
                _listed(others),
            )

    def finished(self, name: str) -> bool:
        """Return True if this file is there already, with the bytes that were written to it."""
        noted = self._files.get(name)
        path = self.path / name
        if noted is None or not is_file(path):
            return False
        try:
            return path.stat().st_size == noted["bytes"] and checksum(path) == noted["crc32c"]
        except OSError as error:
            raise refused("read", path, error) from error

    def notes(self, name: str) -> Any:
        """Return the notes that `write` kept with a finished file."""
        return self._files[name].get("notes")

    def require_room(self, needed_bytes: int) -> None:
        """Raise StoreSpaceError where the disk has less."""
        free = shutil.disk_usage(self.path).free
        if free < needed_bytes:
            raise StoreSpaceError(
                f"{self.path}: expected {bytes_text(needed_bytes)} free on its disk, found {bytes_text(free)}; "
                "free some space or name another folder"
            )

    @contextmanager
    def write(self, name: str) -> Iterator[Output]:
        """Write a file; it is there under its name when the block ends without an error, durably, or not at all.

        Raises:
            StoreSpaceError: the disk is full; what was written of this file is removed.
            StorePermissionError, StoreError: the system refuses.
        """
        temporary = self.path / f"{name}.partial"
        try:
            with replaced_file(self.path / name, temporary) as file:
                output = Output(file, temporary, self._room)
                yield output
                os.fsync(file.fileno())
        except (OSError, StoreSpaceError) as error:
            found = refused("write", temporary, error) if isinstance(error, OSError) else error
            if isinstance(found, StoreSpaceError):
                found = StoreSpaceError(
                    f"{found}; give the same command again: it goes on after the files that are finished (the store "
                    "was not touched)"
                )
            raise found from error
        self._files[name] = {"bytes": output.written_bytes, "crc32c": output.crc32c, "notes": output.notes}
        self._note()  # makes the file's name durable, too, in the same folder

    def _note(self) -> None:
        document = {"origin": self._origin, "files": self._files}
        self._room.retry(lambda: write_json(self._journal, document), self._journal)


class Output:
    """An open file of an `OutputFolder`; ``notes`` may be set to what JSON can hold, to be found again."""

    def __init__(self, file: FileIO, path: Path, room: Room = NO_WAIT) -> None:
        self._file = file
        self._path = path
        self._room = room
        self.written_bytes = 0
        self.crc32c = 0
        self.notes: Any = None

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; returns how many."""
        view = memoryview(data).cast("B")
        while view:
            written = self._room.retry(partial(self._file.write, view), self._path, len(view))
            self.crc32c = native.crc32c(view[:written], self.crc32c)
            self.written_bytes += written
            view = view[written:]
        return len(data)


def checksum(path: Path) -> int:
    """CRC32C of a file's bytes, read in parts."""
    crc = 0
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            crc = native.crc32c(data, crc)
    return crc


def _listed(names: Iterable[str]) -> str:
    """The first names for a message, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more


def _is_journal(found: object) -> bool:
    """Return true when JSON is what an export writes: its origin, and of each file its length and checksum."""
    if not isinstance(found, dict) or "origin" not in found or not isinstance(found.get("files"), dict):
        return False
    return all(
        isinstance(noted, dict) and isinstance(noted.get("bytes"), int) and isinstance(noted.get("crc32c"), int)
        for noted in found["files"].values()
    )


def _differences(there: object, here: Mapping[str, Any]) -> str:
    """Name what differs between two exports; values that are the same are left out."""
    if not isinstance(there, dict):
        return "one that another version of LuWu made"
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    return ", ".join(f"{name.replace('_', ' ')} {there.get(name)} there, {here.get(name)} here" for name in names)
