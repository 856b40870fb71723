"""Finds what is left of a store whose manifest file is missing."""

from __future__ import annotations

import struct
from pathlib import Path

CHUNK_NAMES = ("frozen.luwu", "version-0.luwu", "version-1.luwu")
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
    names = [path.parent.name for path in folder.glob("snapshots/*/manifest.json")]
    steps = [int(name) for name in names if name.isdecimal()]
    return f"{folder / 'snapshots' / str(max(steps)) / 'manifest.json'}" if steps else "a copy of the store"
