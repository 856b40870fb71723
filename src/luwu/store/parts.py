"""Looks at single files of a store, of which some may be missing, and makes typed errors of what the system refuses."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

from luwu.core.errors import LuwuError, StoreError, StoreFormatError, StorePermissionError
from luwu.core.room import is_full, no_room

CHUNK_NAMES = ("frozen.luwu", "version-0.luwu", "version-1.luwu")
SNAPSHOT_RECORD_NAME = "snapshot.luwu"
CHUNKS_MAGIC = b"LUWUDATA"
_PAGE_0 = struct.Struct("<8sII")  # the beginning of a file of chunks: magic, format, stripe


def stripe_of(folder: Path) -> int | None:
    """Return the number of a folder of a store, as its files of chunks say; None where none of them says it."""
    for name in CHUNK_NAMES:
        try:
            with (folder / name).open("rb") as file:
                magic, _, stripe = _PAGE_0.unpack(file.read(_PAGE_0.size))
        except (OSError, struct.error):
            continue
        if magic == CHUNKS_MAGIC:
            return int(stripe)
    return None


def manifest_copy(folder: Path) -> str:
    """Say where the manifest file of a store that lacks it may be: in its last snapshot."""
    records = folder.glob(f"snapshots/*/{SNAPSHOT_RECORD_NAME}")
    names = [path.parent.name for path in records if path.with_name("manifest.json").is_file()]
    steps = [int(name) for name in names if name.isdecimal()]
    return f"{folder / 'snapshots' / str(max(steps)) / 'manifest.json'}" if steps else "a copy of the store"


def refused(action: str, path: Path, error: OSError) -> LuwuError:
    """Return the typed error for an operating system's refusal at a path."""
    if is_full(error):
        return no_room(path, error, action)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return StoreFormatError(f"cannot {action} {path}: expected a folder, found a file on the way; check the path")
    if error.errno in (errno.EIO, errno.ESTALE):
        return StoreError(f"cannot {action} {path}: {error.strerror}; look at the disk")
    return no_permission(action, path, error.strerror)


def no_permission(action: str, path: Path, reason: str | None) -> StorePermissionError:
    """Return the error for what this user may not do with a path."""
    return StorePermissionError(
        f"cannot {action} {path}: {reason}; give this user read and write permission there or name another folder "
        "with --store or --run"
    )


def look_at(path: Path) -> os.stat_result | None:
    """Return the status of the file or folder that has this name, or None where nothing has it.

    Raises:
        StorePermissionError, StoreError: nobody can tell, as its folder cannot be searched or read.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refused("look at", path, error) from error


def is_there(path: Path) -> bool:
    """Return true where a file or folder has this name; raises as `look_at`."""
    return look_at(path) is not None


def is_file(path: Path) -> bool:
    """Return true where a file has this name; raises as `look_at`."""
    found = look_at(path)
    return found is not None and stat.S_ISREG(found.st_mode)
