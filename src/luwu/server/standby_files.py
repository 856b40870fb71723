"""The small files of a store that a standby needs, too: the run's record, the origin, and the model's files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from luwu.control import control_pb2 as pb
from luwu.core.errors import ServerError
from luwu.core.files import whole_file, write_all
from luwu.store.folders import MODEL_FOLDER, ORIGIN_NAME, make_folder
from luwu.store.parts import refused
from luwu.store.run_record import RUN_NAME

MOST_FILES = 64
MOST_FILES_BYTES = 32 * 2**20
"""Most bytes of such files together, so that an answer of the control plane has room for them."""

log = logging.getLogger(__name__)


def files_of(folder: Path) -> Iterator[pb.StoreFile]:
    """Read the small files of the store whose first folder this is; those without room are left out, and logged."""
    left = MOST_FILES_BYTES
    model = folder / MODEL_FOLDER
    names = [RUN_NAME, ORIGIN_NAME]
    with suppress(OSError):
        names += sorted(f"{MODEL_FOLDER}/{path.name}" for path in model.iterdir() if path.is_file())
    for name in names[:MOST_FILES]:
        try:
            content = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise refused("read", folder / name, error) from error
        if len(content) > left:
            log.warning("the standby does not get %s bytes=%d", folder / name, len(content))
            continue
        left -= len(content)
        yield pb.StoreFile(name=name, content=content)


def note_of(folder: Path) -> bytes:
    """Return what travels with each commit: the record of the store's run, empty where no run has begun."""
    try:
        return (folder / RUN_NAME).read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise refused("read", folder / RUN_NAME, error) from error


def write_files(folder: Path, files: Sequence[pb.StoreFile]) -> None:
    """Write the files that a server has sent, each whole or not at all.

    Raises:
        ServerError: a name that no such file has. StoreError, StoreSpaceError, StorePermissionError: see `write_file`.
    """
    for file in files:
        parts = PurePosixPath(file.name).parts
        known = file.name in (RUN_NAME, ORIGIN_NAME) or (len(parts) == 2 and parts[0] == MODEL_FOLDER)
        if not known or ".." in parts or "\0" in file.name:
            raise ServerError(f"the server has sent a file {json.dumps(file.name)}, which is none of a store's")
        if len(parts) > 1:
            make_folder(folder / MODEL_FOLDER)
        write_file(folder / file.name, file.content)


def write_note(folder: Path, note: bytes) -> None:
    """Write the record of the store's run, as it has come with a commit; raises as `write_file`."""
    if note:
        write_file(folder / RUN_NAME, note)


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves either all of it or what was there before.

    Raises:
        StoreSpaceError, StorePermissionError, StoreError: it cannot be written.
    """
    try:
        with whole_file(path) as file:
            write_all(file, content)
    except OSError as error:
        raise refused("write", path, error) from error
