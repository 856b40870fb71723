"""JSON files of a store with a checksum of their content, so that a flipped bit does not pass for another model.

Somebody who edits such a file removes the line with the checksum; files were written without one before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from luwu.core import native
from luwu.core.errors import StoreCorruptError
from luwu.core.quantities import shown

CHECKSUM_NAME = "crc32c"
"""Name of the checksum in the object, where it comes first: its line can be removed."""


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with its checksum."""
    return {CHECKSUM_NAME: _checksum(json.loads(json.dumps(document))), **document}  # of the text that is read later


def require_unchanged(path: Path, raw: Mapping[str, Any], names: Collection[str]) -> None:
    """Compare the checksum of an object that was read from a file.

    Args:
        path: the file, for the message.
        raw: the object.
        names: those that an object without a checksum may have. One with another name may be an object whose checksum's
            own name was damaged.

    Raises:
        StoreCorruptError: the object is not what was written.
    """
    if CHECKSUM_NAME not in raw:
        strangers = sorted(set(raw) - set(names))
        if strangers:
            raise StoreCorruptError(
                f"{path}: expected {', '.join(names)} and {CHECKSUM_NAME}, found {shown(strangers[0])}; restore the "
                "file, or remove what was added to it"
            )
        return
    found = _checksum({name: value for name, value in raw.items() if name != CHECKSUM_NAME})
    if raw[CHECKSUM_NAME] != found:
        raise StoreCorruptError(
            f"{path}: expected {CHECKSUM_NAME} {shown(raw[CHECKSUM_NAME])} of its contents, as its first line says, "
            f"found '{found}': the disk returned other bytes than were written, or somebody edited the file; restore "
            f"it from a copy or from snapshots/STEP, or, if the edit is meant, remove the line with {CHECKSUM_NAME}"
        )


def _checksum(document: Mapping[str, Any]) -> str:
    """CRC32C of the object as JSON without spaces, its names sorted, in ASCII: eight hexadecimal digits."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return f"{native.crc32c(text.encode()):08x}"
