"""Fields of JSON that may be damaged or made up: each is checked, or a ValueError describes it."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from luwu.core.quantities import has_utf8, shown

MALFORMED = (KeyError, TypeError, ValueError, RecursionError)
"""Errors that the reading of such JSON raises."""


MOST_BYTES = 2**28
"""Bound of a file of JSON: the manifest of a million parameters is no larger."""


def read_text(path: Path) -> str:
    """Return the text of a file of JSON.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, no UTF-8, or longer than `MOST_BYTES`.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # a pipe would be waited for
        raise ValueError("a pipe or a device")
    nbytes = found.st_size
    if nbytes > MOST_BYTES:
        raise ValueError(f"{nbytes} bytes, which are more than {MOST_BYTES}")
    return path.read_text(encoding="utf-8")


def read_object(text: str) -> Mapping[str, Any]:
    """Return the JSON object in a text; raises one of `MALFORMED`."""
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError(f"no object but {shown(raw)}")
    return raw


def whole(raw: Mapping[str, Any], name: str, least: int, most: int, default: int | None = None) -> int:
    """Return a whole number in a range; raises ValueError, or KeyError if it is missing and has no default."""
    value = raw[name] if default is None else raw.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} {shown(value)}, which is no whole number from {least} to {most}")
    return value


def words(value: object, name: str) -> str:
    """Return text that can be encoded in UTF-8; raises ValueError."""
    if not isinstance(value, str) or not has_utf8(value):
        raise ValueError(f"{name} {shown(value)}, which is no text")
    return value


def flag(value: object, name: str) -> bool:
    """Return true or false; raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} {shown(value)}, which is neither true nor false")
    return value


def listed(value: object, name: str) -> list[Any]:
    """Return a list; raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{name} {shown(value)}, which is no list")
    return value


def table(value: object, name: str) -> dict[str, Any]:
    """An object; raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} {shown(value)}, which is no object")
    return value


def explained(error: Exception) -> str:
    """Describe the error of a reader, for a message after `found`."""
    if isinstance(error, RecursionError):
        return "lists or objects thousands deep"
    if isinstance(error, KeyError):
        return f"none named {error.args[0]}"
    return str(error) if isinstance(error, ValueError) else repr(error)
