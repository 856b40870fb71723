"""The files of a run on another machine, which workers of this one read: fetched from its launcher, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from luwu.core.errors import ConfigError, ServerError
from luwu.core.room import Room
from luwu.data.corpus import DATA_NAME, SIDECAR_NAME, Corpus, Progress
from luwu.launch.machines import FILE_NAMES

Read = Callable[[str, int], bytes]
"""Function that returns the next bytes of a file, by its name and an offset; none at its end."""


def fetch_files(sizes: Mapping[str, int], folder: Path, read: Read, on_progress: Progress, room: Room) -> None:
    """Fetch a run's files, and check the corpus. One that is there already is not fetched again.

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
    (folder / SIDECAR_NAME).parent.mkdir(parents=True, exist_ok=True)
    sidecar = _read_whole(SIDECAR_NAME, read)
    wanted = set(sizes) - {SIDECAR_NAME}
    if _is_here(folder, sidecar, sizes.get(DATA_NAME, 0)):
        wanted.discard(DATA_NAME)
    else:
        (folder / SIDECAR_NAME).unlink(missing_ok=True)  # what is left of a fetch that was broken off is no corpus
    total, done = sum(sizes[name] for name in wanted), 0
    for name in sorted(wanted):
        done = _fetch(folder / name, name, sizes[name], read, lambda found: on_progress(found, total), done, room)
    if DATA_NAME in wanted:
        room.write_file(folder / SIDECAR_NAME, sidecar.decode())
    corpus = Corpus.load(folder)
    if corpus is not None:
        corpus.verify_if_touched(on_progress, room)


def _fetch(path: Path, name: str, size: int, read: Read, tell: Callable[[int], None], before: int, room: Room) -> int:
    """Fetch one file, whole or not at all; return the bytes of all files that are done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part, done = path.with_name(f"{path.name}.part"), 0
    with room.retry(lambda: part.open("wb", buffering=0), part) as file:
        while content := read(name, done):
            room.append(file, content, part)
            done += len(content)
            tell(before + done)
    if done != size:
        raise ServerError(f"{name}: expected {size} bytes from the run's machine, found {done}; join again")
    part.replace(path)
    return before + done


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
