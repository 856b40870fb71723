"""Parts that the Python targets share: input taken piece by piece, documents with edits, a folder in memory."""

from __future__ import annotations

import atexit
import copy
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from unittest import mock

from luwu.server import service

Value = TypeVar("Value")

SNIPPETS = (
    b"null", b"true", b"false", b"0", b"1", b"-1", b"2", b"3", b"1.5", b"1e999", b"-1e999", b"NaN", b"4294967296",
    b"9223372036854775807", b"18446744073709551616", b"9" * 5000, b'""', b'"x"', b'"0"', b'"\\ud800"', b'"\\u0000"',
    b'"../x"', b'".."', b'"' + b"n" * 300 + b'"', b"[]", b"{}", b"[[]]", b"[0]", b'["x"]', b"[null]", b'{"x": 0}',
    b'{"format": 1}', b"[" * 3000 + b"]" * 3000, b'{"a":' * 3000 + b"0" + b"}" * 3000, b"", b"\xff", b'"', b"0,",
)  # fmt: skip
"""Replacements for a value in an edit: JSON at its limits, and text that is no JSON."""

_MOST_EDITS = 8


class Input:
    """A fuzzer's bytes, taken from the front; what is missing is zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def bytes(self, most: int) -> bytes:
        """The next bytes, as many as there are."""
        taken = self._data[self._at : self._at + most]
        self._at += len(taken)
        return taken

    def number(self, size: int = 1) -> int:
        """Return an unsigned number of ``size`` bytes."""
        return int.from_bytes(self.bytes(size), "little")

    def rest(self) -> bytes:
        """All that is left."""
        return self.bytes(len(self._data))


def edited(document: Any, given: Input, finish: Callable[[Any], Any] = lambda document: document) -> bytes:
    """JSON text of a document after edits that the input chooses; `finish` may seal the edited document.

    A third of all inputs is text as it stands instead.
    """
    if given.number() % 3 == 2:
        return given.rest()
    document, snippets = {"document": copy.deepcopy(document)}, {}
    for edit in range(_MOST_EDITS):
        if not given:
            break
        places = _places(document)
        place, how = places[given.number() % len(places)], given.number()
        if how % 4 == 3 and place.holder is not document:
            del place.holder[place.key]
            continue
        if how % 4 == 2:
            place.holder[place.key] = copy.deepcopy(places[given.number() % len(places)].value)
            continue
        mark = f"edit {edit} of the fuzzer"
        number = given.number()
        snippets[mark] = SNIPPETS[number] if number < len(SNIPPETS) else given.bytes(number - len(SNIPPETS))
        place.holder[place.key] = _parsed(snippets[mark], mark)
    try:
        text = json.dumps(finish(document["document"])).encode()
    except (ValueError, TypeError, RecursionError):  # what is no object any more cannot be sealed
        text = json.dumps(document["document"]).encode()
    for mark, snippet in snippets.items():
        text = text.replace(json.dumps(mark).encode(), snippet)
    return text


class _Place(NamedTuple):
    holder: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.holder[self.key]


def _places(document: dict[str, Any]) -> list[_Place]:
    """Every value of a document, outer ones first, the whole of it included."""
    found, at = [_Place(document, "document")], 0
    while at < len(found) and len(found) < 256:
        value = found[at].value
        at += 1
        if isinstance(value, dict):
            found += [_Place(value, key) for key in value]
        elif isinstance(value, list):
            found += [_Place(value, index) for index in range(len(value))]
    return found


def _parsed(snippet: bytes, mark: str) -> Any:
    """The value that a snippet stands for where it can be sealed along with the rest, else its mark."""
    try:
        value = json.loads(snippet)
        json.dumps(value).encode()
    except (ValueError, RecursionError):
        return mark
    return value


_FOLDERS: list[str] = []


def scratch() -> Path:
    """An empty folder in memory, removed when the process ends."""
    if not _FOLDERS:
        in_memory = "/dev/shm" if "TMPDIR" not in os.environ and Path("/dev/shm").is_dir() else None
        _FOLDERS.append(tempfile.mkdtemp(prefix="luwu-fuzz-", dir=in_memory))
        atexit.register(shutil.rmtree, _FOLDERS[0], ignore_errors=True)
    folder = Path(_FOLDERS[0], "now")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def put(path: Path, content: bytes, how: int) -> None:
    """Write a file; two of four numbers leave it out, or put a folder in its place, as a damaged disk may."""
    if how % 4 == 2:
        path.mkdir()
    elif how % 4 != 1:
        path.write_bytes(content)


def allowing(errors: type[Exception] | tuple[type[Exception], ...], act: Callable[[], Value]) -> Value | None:
    """Return the call's result, or None if it raised one of the documented errors; their messages can be shown."""
    try:
        return act()
    except errors as error:
        str(error).encode("utf-8", "backslashreplace")
        return None


@contextmanager
def faults_raised() -> Iterator[None]:
    """Context manager: an exception of the control plane's methods that is not LuWu's own is a finding."""

    def fault(text: str, method: str, *, exc_info: Exception) -> NoReturn:
        raise exc_info

    with mock.patch.object(service.log, "error", fault):  # not a handler: logging may be switched off
        yield
