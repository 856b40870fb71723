"""The files of a run on another machine, which workers of this one read: fetched from its launcher, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from luwu.core.errors import ConfigError, DataError, ServerError
from luwu.core.room import Room
from luwu.data.corpus import DATA_NAME, SIDECAR_NAME, Corpus, Progress
from luwu.launch.machines import FILE_NAMES

PART = ".part"
"""Ending of a file that has not come as a whole."""

Read = Callable[[str, int], bytes]
"""Function that returns the next bytes of a file, by its name and an offset; none at its end."""


def fetch_files(sizes: Mapping[str, int], folder: Path, read: Read, on_progress: Progress, room: Room) -> None:
    """Fetch a run's files, and check the corpus. One that is there already and whole is not fetched again.

    Args:
        sizes: bytes of the files by name.
        folder: the run folder on this machine.
        read: reads a piece of a file.
        on_progress: called with bytes done and in all.
        room: the wait for a full disk.

    Raises:
        ConfigError: a file that a run has not. ServerError: one has another size than was told.
        DataError: the corpus came damaged. StoreSpaceError: there was no room in time.
    """
    if wrong := set(sizes) - set(FILE_NAMES):
        raise ConfigError(f"file: expected one of {', '.join(FILE_NAMES)}, found {min(wrong)!r}")
    folder.mkdir(parents=True, exist_ok=True)
    sidecar = _read_whole(SIDECAR_NAME, read)
    others = set(sizes) - {SIDECAR_NAME, DATA_NAME}
    here = _is_here(folder, sidecar, sizes.get(DATA_NAME, 0))
    if here:
        with suppress(DataError):  # it is fetched again
            _verify(folder, on_progress, room)
            _fetch_all(others, sizes, folder, read, on_progress, room)
            return
    if here or not _continues(folder, sidecar):
        (folder / f"{DATA_NAME}{PART}").unlink(missing_ok=True)
    (folder / SIDECAR_NAME).unlink(missing_ok=True)  # what is left of a fetch that was broken off is no corpus
    room.write_file(folder / f"{SIDECAR_NAME}{PART}", sidecar.decode())
    _fetch_all({*others, DATA_NAME} & set(sizes), sizes, folder, read, on_progress, room)
    (folder / f"{SIDECAR_NAME}{PART}").replace(folder / SIDECAR_NAME)
    _verify(folder, on_progress, room)


def _verify(folder: Path, on_progress: Progress, room: Room) -> None:
    corpus = Corpus.load(folder)
    if corpus is not None:
        corpus.verify_if_touched(on_progress, room)


def _fetch_all(
    names: set[str], sizes: Mapping[str, int], folder: Path, read: Read, on_progress: Progress, room: Room
) -> None:
    total, done = sum(sizes[name] for name in names), 0
    for name in sorted(names):
        done = _fetch(folder / name, name, sizes[name], read, lambda found: on_progress(found, total), done, room)


def _fetch(path: Path, name: str, size: int, read: Read, tell: Callable[[int], None], before: int, room: Room) -> int:
    """Fetch one file, from where an earlier fetch was broken off; return the bytes of all files that are done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}{PART}")
    with room.retry(lambda: part.open("ab", buffering=0), part) as file:
        done = part.stat().st_size if name == DATA_NAME else 0
        file.truncate(done)
        while content := read(name, done):
            room.append(file, content, part)
            done += len(content)
            tell(before + done)
    if done != size:
        part.unlink()
        raise ServerError(f"{name}: expected {size} bytes from the run's machine, found {done}; join again")
    part.replace(path)
    return before + done


def _continues(folder: Path, sidecar: bytes) -> bool:
    """Return True if a fetch that was broken off was of the same corpus."""
    try:
        return (folder / f"{SIDECAR_NAME}{PART}").read_bytes() == sidecar
    except OSError:
        return False


def _read_whole(name: str, read: Read) -> bytes:
    content = b""
    while more := read(name, len(content)):
        content += more
    return content


def _is_here(folder: Path, sidecar: bytes, size: int) -> bool:
    """Return True if the folder has this corpus already; `Corpus.verify_if_touched` looks at its content."""
    path = folder / DATA_NAME
    try:
        found = _identity((folder / SIDECAR_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return path.exists() and path.stat().st_size == size and found == _identity(sidecar)


def _identity(sidecar: bytes) -> dict[str, Any]:
    """Return the fields of a sidecar but for the time at which a machine wrote the corpus."""
    return {name: value for name, value in json.loads(sidecar).items() if name != "written_ns"}
