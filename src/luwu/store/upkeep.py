"""Look into a store, and give the room of its other version back."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from luwu.core.errors import StoreCorruptError, StoreLockedError
from luwu.core.json_fields import MALFORMED, read_object, read_text
from luwu.core.manifest import Manifest
from luwu.core.quantities import has_utf8
from luwu.core.words import counted
from luwu.store.findings import findings_of, say_findings
from luwu.store.folders import ORIGIN_NAME, UNFINISHED_IMPORT_NAME, no_values
from luwu.store.model_files import CONFIG_NAME, kept_model_folder
from luwu.store.opening import held_at_rest, open_writer, reader_of
from luwu.store.origin import read_origin, require_model_files
from luwu.store.parts import is_there
from luwu.store.run_record import RunRecord, read_record
from luwu.store.snapshots import snapshot_steps
from luwu.store.standby_record import StandbyRecord, read_standby
from luwu.store.values import has_master, moment_names, require_identity, require_whole

_DISK_BLOCK_BYTES = 512  # unit of st_blocks, whatever the file system's own


@dataclass(frozen=True)
class FolderUse:
    """Disk use of a store's folder: bytes of its files by length, bytes that they take, and free bytes.

    Its snapshots are counted in, and a file that several of them have once.
    """

    path: Path
    file_bytes: int
    allocated_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class StoreInfo:
    """The facts that `info` finds.

    Attributes:
        uuid: the store's id.
        model: architectures that the imported config.json names; empty where the store was not imported.
        run: the run that the store belongs to; None: luwu train has not trained on it.
        dtype: the parameters' dtype as workers pull them; if there are several, each with its number of blocks.
        trainable, frozen: numbers of parameters.
        blocks, chunks: numbers of blocks and chunks of the parameters.
        optimizer: kind of the optimizer whose states the store keeps.
        optimizer_states: states of each trainable parameter; the float32 master is among them if any block keeps one.
        loss_scale: loss scale of the last committed step; None where losses are not scaled.
        step: the committed step; None: there are no values yet.
        attempts, rolled_back: steps tried, and those that were rolled back.
        origin: files that the first values were imported from.
        folders: the store's folders.
        in_use: a server or an import has the store open.
        unfinished_import: an import was begun and has to be finished.
        snapshots: steps of its snapshots.
        findings: damage to the commit records, in words, which hides at most the last commit, and to the version that
            is not committed, both of which opening the store for training mends; and to origin.json and an imported
            model's files, which hides ``origin`` and ``model``.
        standby: the store's standby, or the server that it follows.
    """

    uuid: str
    model: tuple[str, ...]
    run: RunRecord | None
    dtype: str
    trainable: int
    frozen: int
    blocks: int
    chunks: int
    optimizer: str
    optimizer_states: tuple[str, ...]
    loss_scale: float | None
    step: int | None
    attempts: int
    rolled_back: int
    origin: tuple[str, ...]
    folders: tuple[FolderUse, ...]
    in_use: bool
    unfinished_import: bool
    snapshots: tuple[int, ...]
    findings: tuple[str, ...]
    standby: StandbyRecord = field(default_factory=StandbyRecord)


def info(folders: list[Path]) -> StoreInfo:
    """Look at a store, also while a server has it open; no chunk is read.

    Raises:
        StoreFormatError: there is none. ConfigError: it lies in another number of folders.
        StoreCorruptError: its files are damaged.
    """
    identity = require_identity(folders)
    manifest, reader = identity.manifest, reader_of(folders, identity)
    counts = {
        kind: sum(each.numel for block in manifest.blocks if block.trainable is kind for each in block.parameters)
        for kind in (True, False)
    }
    origin, damage = _origin(folders[0])
    master = ("master",) if any(has_master(manifest, block) for block in manifest.blocks) else ()
    return StoreInfo(
        uuid=identity.uuid,
        model=() if damage else _architectures(folders[0]),
        run=read_record(folders[0]),
        dtype=_dtypes_of(manifest),
        trainable=counts[True],
        frozen=counts[False],
        blocks=len(manifest.blocks),
        chunks=sum(len(reader.chunks(block)) for block in range(len(manifest.blocks))),
        optimizer=manifest.optimizer,
        optimizer_states=(*master, *moment_names(manifest)) if counts[True] else (),
        loss_scale=reader.loss_scale,
        step=int(reader.step) if reader.initialised else None,
        attempts=int(reader.attempts),
        rolled_back=int(reader.rolled_back),
        origin=origin,
        folders=tuple(_use_of(folder) for folder in folders),
        in_use=_in_use(folders),
        unfinished_import=is_there(folders[0] / UNFINISHED_IMPORT_NAME),
        snapshots=tuple(snapshot_steps(folders)),
        findings=(*findings_of(reader), *damage),
        standby=read_standby(folders[0]),
    )


def compact(folders: list[Path]) -> int:
    """Give the disk back the room that the committed step does not need; return the bytes.

    A store has two versions of its trainable chunks, of which one is committed; the other's room is given back, and
    with it the step before. No value is lost, and snapshots stay. Whoever trains on the store takes the room again when
    they open it.

    Raises:
        StoreFormatError: there is no store. StoreEmptyError: it has no values yet. StoreLockedError: a server has it
            open.
        ConfigError: it is one of several servers', which may have to go back to the step before together.
    """
    identity = require_identity(folders)
    require_whole(
        folders[0], identity.manifest, "leave it as it is: all servers may have to go back to the step before"
    )
    writer = open_writer(folders, identity)
    try:
        say_findings(writer)
        if not writer.initialised:
            raise no_values(folders[0])
        return int(writer.compact())
    finally:
        writer.close()


def _dtypes_of(manifest: Manifest) -> str:
    counts = Counter(manifest.dtype_of(block) for block in manifest.blocks)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{dtype} ({counted(count, 'block')})" for dtype, count in counts.most_common())


def _use_of(folder: Path) -> FolderUse:
    stats = {stat.st_ino: stat for path in folder.rglob("*") if path.is_file() for stat in [path.stat()]}.values()
    return FolderUse(
        folder,
        sum(stat.st_size for stat in stats),
        sum(stat.st_blocks * _DISK_BLOCK_BYTES for stat in stats),
        shutil.disk_usage(folder).free,
    )


def _in_use(folders: list[Path]) -> bool:
    try:
        with held_at_rest(folders):
            return False
    except StoreLockedError:
        return True


def _architectures(folder: Path) -> tuple[str, ...]:
    kept = kept_model_folder(folder)
    if kept is None:
        return ()
    try:
        named = read_object(read_text(kept / CONFIG_NAME)).get("architectures")
    except (OSError, *MALFORMED):
        return ()  # not this command's to complain about
    if not isinstance(named, list):
        return ()
    return tuple(name for name in named if isinstance(name, str) and has_utf8(name))


def _origin(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that an import names, and the damage to files that it left beside the values, in words."""
    try:
        require_model_files(folder)
        found = read_origin(folder / ORIGIN_NAME)
    except StoreCorruptError as error:
        return (), (str(error),)
    try:
        return () if found is None else tuple(str(file[0]) for file in found.source["files"]), ()
    except (LookupError, TypeError):
        return (), ()  # made by hand
