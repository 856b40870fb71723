"""First values of a store from elsewhere, chunk by chunk: never more than a few chunks are in memory.

An import that was killed goes on where it was: chunks are written in order, and every now and then made durable and
counted in a file beside the store, which says as well where they came from. While that file is there no server opens
the store.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from luwu.core import native
from luwu.core.errors import ConfigError
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.core.room import NO_WAIT, Room
from luwu.store.folders import (
    MANIFEST_NAME,
    ORIGIN_NAME,
    UNFINISHED_IMPORT_NAME,
    StoreIdentity,
    make_folder,
    read_identity,
    remove_file,
    require_stripes,
    write_identity,
)
from luwu.store.opening import open_writer, reader_of
from luwu.store.origin import Origin, read_origin, write_journal, write_origin
from luwu.store.parts import refused
from luwu.store.run_record import RUN_NAME
from luwu.store.values import Progress, no_progress

SYNC_BYTES = 256 * 2**20
"""Bytes between two entries of the journal: the most that a killed import does again."""


class Source(Protocol):
    """Interface of a source of values."""

    @property
    def origin(self) -> Mapping[str, Any]:
        """Identity of this source, which changes when its files change; JSON can hold it."""
        ...

    @property
    def step(self) -> int:
        """Optimizer steps that the values have seen."""
        ...

    def updates(self, block: BlockManifest) -> int:
        """Return the number of steps that updated this block."""
        ...

    def read(self, parameter: ParameterManifest, first: int, count: int) -> Tensor:
        """Elements of a parameter, flat, in any floating-point dtype."""
        ...

    def read_moments(self, parameter: ParameterManifest, first: int, count: int) -> list[Tensor]:
        """Optimizer states of the same elements, in the order of `moment_names`; none: they are zeros."""
        ...


@dataclass(frozen=True)
class ImportReport:
    """Result of an import: ``written_bytes`` is 0 and ``finished_before`` set where nothing was left to do."""

    step: int
    parameters: int
    resumed_at_chunk: int
    written_bytes: int
    finished_before: bool


def import_values(
    source: Source,
    manifest: Manifest,
    folders: list[Path],
    progress: Progress = no_progress,
    room: Room = NO_WAIT,
    keep: Callable[[], None] = lambda: None,
) -> ImportReport:
    """Make a store for a manifest and fill it; the step of the source is committed last.

    Args:
        source: the source of the parameters; they have the manifest's shapes.
        manifest: manifest of the model that will train on, as `luwu.parallelize` makes it.
        folders: the store's folders; made where missing.
        progress: called with bytes written, and bytes in all.
        room: the wait for a disk that fills up meanwhile.
        keep: writes what belongs into the first folder beside the values, before the import counts as finished. It may
            be called again.

    Raises:
        ConfigError: the folders hold another store, which is left as it is.
        StoreSpaceError, StorePermissionError, StoreLockedError, StoreError: the folders cannot be used.
        LuwuError: the source's error.
    """
    for folder in folders:
        make_folder(folder)
    origin = json.loads(json.dumps(dict(source.origin)))  # as it is read again
    origin["manifest_crc32"] = zlib.crc32(manifest.to_json().encode())
    if _already_imported(folders, origin, keep, partial(_checksum_of, source, manifest, folders, progress)):
        return _report(source, manifest, finished_before=True)
    writer, begun = _open(folders, manifest, origin)
    try:
        values = _fill(writer, begun, source, manifest, folders, progress, room)
        room.retry(partial(_finish, folders[0], origin, keep, values), folders[0])
        written = sum(block.elements for block in manifest.blocks) * 4
        return _report(source, manifest, resumed_at_chunk=begun.chunks, written_bytes=written)
    finally:
        writer.close()  # now, and not when a traceback that names it goes


def _fill(
    writer: native.StoreWriter,
    begun: Origin,
    source: Source,
    manifest: Manifest,
    folders: list[Path],
    progress: Progress,
    room: Room,
) -> str:
    """Write what is missing, and commit it; return the checksum of all values, as `Origin.values` has it."""
    chunks, begin = list(_chunks(folders, manifest)), begun.chunks
    checksum = begun.values
    total = sum(block.elements for block in manifest.blocks) * 4
    done = sum(elements for _, _, _, elements in chunks[:begin]) * 4
    unsynced = 0

    def note(written: int, values: str) -> None:
        writer.sync()
        room.retry(partial(write_journal, folders[0], replace(begun, chunks=written, values=values)), folders[0])

    progress(done, total)
    with ThreadPoolExecutor(1, "luwu-import") as pool:
        finish: Callable[[], None] | None = None  # the next chunk is read while one is written
        for number, (index, chunk, first, elements) in enumerate(chunks[begin:], begin):
            block = manifest.blocks[index]
            values, moments = _gather(source, block, first, elements)
            if finish is not None:
                finish()
            before, checksum = checksum, _continued(checksum, number, values, moments)
            if unsynced >= SYNC_BYTES:
                note(number, before)
                unsynced = 0
            write = partial(writer.write_chunk, index, chunk, source.updates(block), values, moments)
            again = partial(pool.submit, write)
            finish = partial(room.result, again(), again, folders[0], elements * 4 * (1 + len(moments)))
            done, unsynced = done + elements * 4, unsynced + elements * 4 * (1 + len(moments))
            progress(done, total)
        if finish is not None:
            finish()
    note(len(chunks), checksum)  # whoever is killed after the commit finds the checksum there
    writer.commit(source.step, [source.updates(block) for block in manifest.blocks])
    return checksum


def _continued(checksum: str, chunk: int, values: Any, moments: list[Any]) -> str:
    """Return the checksum of the values so far and of a chunk's; empty where that of the earlier ones is not known."""
    if chunk > 0 and not checksum:
        return ""
    crc = int(checksum, 16) if chunk > 0 else 0
    for array in (values, *moments):
        crc = native.crc32c(array.view(np.uint8), crc)
    return f"{crc:08x}"


def _checksum_of(source: Source, manifest: Manifest, folders: list[Path], progress: Progress) -> str:
    """Read all values of a source, and return their checksum as `Origin.values` has it."""
    total = sum(block.elements for block in manifest.blocks) * 4
    checksum, done = "", 0
    for number, (index, _, first, elements) in enumerate(_chunks(folders, manifest)):
        checksum = _continued(checksum, number, *_gather(source, manifest.blocks[index], first, elements))
        done += elements * 4
        progress(done, total)
    return checksum


def _already_imported(
    folders: list[Path], origin: Mapping[str, Any], keep: Callable[[], None], checksum_of: Callable[[], str]
) -> bool:
    """Return true when this very import was finished before, or is now; raises ConfigError for another store.

    Files that differ in their times of change alone are the same ones if their values are: `checksum_of` reads them.
    """
    identity = read_identity(folders[0])
    if identity is None or not _is_committed(folders, identity):
        return False
    unfinished = read_origin(folders[0] / UNFINISHED_IMPORT_NAME)
    if unfinished is not None and unfinished.source == origin:  # killed between the commit and its last act
        whole = unfinished.chunks == sum(1 for _ in _chunks(folders, identity.manifest))  # not so in earlier versions
        _finish(folders[0], origin, keep, unfinished.values if whole else "")
        return True
    finished = read_origin(folders[0] / ORIGIN_NAME)
    if finished is not None and finished.source == origin:
        return True
    why = "it did not come from there"
    if finished is not None and _without_times(finished.source) == _without_times(origin):
        if finished.values and finished.values == checksum_of():
            return True
        why = (
            "it came from other contents of these files, which have changed since"
            if finished.values
            else "the time of change of its files is another than then, and no checksum of its values was noted"
        )
    elif finished is not None and _files_of(finished.source) == _files_of(origin):
        why = "it came from there with another dtype, other blocks or another optimizer: give the flags of that import"
    raise ConfigError(
        f"the store at {folders[0]} holds a model already, and {why}; name another folder, or remove this one "
        "(nothing was changed)"
    )


def _files_of(origin: Mapping[str, Any]) -> object:
    """Return what names an import's files, whatever the times of change and the flags of the import."""
    return _without_times({name: value for name, value in origin.items() if name != "manifest_crc32"})


def _without_times(origin: Mapping[str, Any]) -> object:
    """Return what names an import's source but for its files' times of change."""
    files = origin.get("files")
    if not isinstance(files, list) or not all(isinstance(file, list) and len(file) == 3 for file in files):
        return origin
    return {**origin, "files": [file[:2] for file in files]}


def _is_committed(folders: list[Path], identity: StoreIdentity) -> bool:
    require_stripes(folders, identity.stripes, ConfigError)
    return bool(reader_of(folders, identity).initialised)


def _open(folders: list[Path], manifest: Manifest, origin: Mapping[str, Any]) -> tuple[native.StoreWriter, Origin]:
    """Open the store to write to; return it, and how much of the import is in it."""
    found, begun = read_identity(folders[0]), read_origin(folders[0] / UNFINISHED_IMPORT_NAME)
    goes_on = begun is not None and begun.source == origin and found is not None and found.manifest == manifest
    identity = found if found is not None and goes_on else StoreIdentity(uuid4().hex, len(folders), manifest)
    # Before the files: from here on nobody takes what is there for a store.
    begun = begun if begun is not None and goes_on else Origin(origin)
    write_journal(folders[0], begun)
    if found is not None and not goes_on:
        remove_file(folders[0] / MANIFEST_NAME)  # it names other files than those that are made now
    writer = open_writer(folders, identity, create=not goes_on)
    if goes_on and begun.chunks > 0 and writer.filling_is_shared:  # they stay in the copy; this store begins again
        begun = Origin(origin)
        write_journal(folders[0], begun)
    if not goes_on:
        try:
            (folders[0] / RUN_NAME).unlink(missing_ok=True)  # left by a store that was here before
        except OSError as error:
            raise refused("remove", folders[0] / RUN_NAME, error) from error
        write_identity(folders, identity)
    return writer, begun


def _chunks(folders: list[Path], manifest: Manifest) -> Iterator[tuple[int, int, int, int]]:
    """Yield (block, chunk in the block, first element, elements) of every chunk, in the store's order."""
    identity = read_identity(folders[0])
    assert identity is not None
    reader = reader_of(folders, identity)
    for index in range(len(manifest.blocks)):
        for chunk, (first, elements) in enumerate(reader.chunks(index)):
            yield index, chunk, first, elements


def _gather(source: Source, block: BlockManifest, first: int, elements: int) -> tuple[Any, list[Any]]:
    """Return a chunk's values and moments as float32 arrays, zeros between the parameters."""
    values = torch.zeros(elements)
    moments: list[Tensor] = []
    for parameter in block.parameters:
        start, end = max(parameter.offset, first), min(parameter.offset + parameter.numel, first + elements)
        if start >= end:
            continue
        place = slice(start - first, end - first)
        values[place] = source.read(parameter, start - parameter.offset, end - start)
        if not block.trainable:
            continue
        for plane, found in enumerate(source.read_moments(parameter, start - parameter.offset, end - start)):
            if plane == len(moments):
                moments.append(torch.zeros(elements))
            moments[plane][place] = found
    return values.numpy(), [moment.numpy() for moment in moments]


def _finish(folder: Path, origin: Mapping[str, Any], keep: Callable[[], None], values: str = "") -> None:
    keep()
    write_origin(folder, origin, values)
    remove_file(folder / UNFINISHED_IMPORT_NAME)


def _report(
    source: Source,
    manifest: Manifest,
    *,
    resumed_at_chunk: int = 0,
    written_bytes: int = 0,
    finished_before: bool = False,
) -> ImportReport:
    parameters = sum(parameter.numel for block in manifest.blocks for parameter in block.parameters)
    return ImportReport(source.step, parameters, resumed_at_chunk, written_bytes, finished_before)
