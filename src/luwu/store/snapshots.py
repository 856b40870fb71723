"""Snapshots of a store: taken, shown, restored and removed. They share all bytes with the store until it changes."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from luwu.core import native
from luwu.core.errors import ConfigError, StoreCorruptError, StoreLockedError
from luwu.core.words import counted
from luwu.store.findings import say_findings
from luwu.store.folders import StoreIdentity
from luwu.store.opening import open_writer, reader_of
from luwu.store.parts import SNAPSHOT_RECORD_NAME
from luwu.store.run_record import read_record, restore_record
from luwu.store.standby_record import require_alone
from luwu.store.values import Progress, no_progress, require_identity, require_whole
from luwu.store.verifying import verify

FOLDER_NAME = "snapshots"
"""Name of the folder of snapshots in each folder of a store. It has a folder for each step."""


_IN_COMMITTED_VERSION = re.compile(r"version-[01]\.luwu (at offset|is missing|is truncated)")


_DISK_BLOCK_BYTES = 512  # unit of st_blocks, whatever the file system's own


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot: its step, the time it was taken, and the bytes on disk that nothing else shares now."""

    step: int
    taken_at: datetime
    own_bytes: int


def may_help(damage: str) -> bool:
    """Return true where the text names damage that going back to a snapshot replaces: to a store's committed version.

    Snapshots share frozen chunks, and have the store's JSON files as they are; one that is damaged itself is no help.
    """
    return _IN_COMMITTED_VERSION.search(damage) is not None and f"/{FOLDER_NAME}/" not in damage


def snapshot_steps(folders: list[Path]) -> list[int]:
    """Steps of the snapshots of a store, ascending."""
    return [int(step) for step in native.snapshot_steps(_texts(folders))]


def snapshot_folders(folders: list[Path], step: int | None) -> list[Path]:
    """Return the folders of a snapshot, which can be read as a store; without a step those of the store itself.

    Raises:
        ConfigError: there is no snapshot of that step.
    """
    if step is None:
        return folders
    steps = snapshot_steps(folders)
    if step not in steps:
        found = "those of step " + ", ".join(map(str, steps)) if steps else "none"
        raise ConfigError(f"{folders[0]}: expected a snapshot of step {step}, found {found}; see luwu snapshot list")
    return [folder / FOLDER_NAME / str(step) for folder in folders]


def take(folders: list[Path]) -> int:
    """Take a snapshot of the last committed step, also while a server of this machine has the store open.

    Return the step.

    Training goes on meanwhile. Of a store that is open, a file for what training writes next is reserved first.

    Raises:
        StoreFormatError: there is no store. StoreEmptyError: it has no values yet.
        StoreSpaceError: there is no room for what training writes next; it goes on without a snapshot.
        ConfigError: a server has it open, and it is one of several servers', whose snapshots belong together; or a
            file or folder that is no snapshot has the snapshot's place.
    """
    identity = require_identity(folders)
    try:
        writer = _writer(folders, identity)
    except StoreLockedError:
        require_whole(
            folders[0],
            identity.manifest,
            "take snapshots of all servers' stores with --snapshot-every, or from a worker with session.snapshot()",
        )
        return int(reader_of(folders, identity).take_snapshot())
    try:
        return int(writer.take_snapshot())
    finally:
        writer.close()


def snapshots(folders: list[Path]) -> list[SnapshotInfo]:
    """The snapshots of a store, by their steps, also while a server has it open.

    Raises:
        StoreFormatError: there is no store.
    """
    require_identity(folders)
    found = []
    for step in snapshot_steps(folders):
        with suppress(FileNotFoundError, ConfigError):  # it was removed meanwhile
            found.append(_look_at(folders, step))
    return found


def restore(folders: list[Path], step: int, progress: Progress = no_progress) -> None:
    """Set a store back to its snapshot of a step; the snapshot stays, and all later steps of the store are lost.

    All of the snapshot is read first, and every checksum compared. Later snapshots stay, too. Training goes on from
    there as it did the first time, and the store belongs to the run that had it then.

    Args:
        folders: the store's folders.
        step: the snapshot's step.
        progress: called with bytes read, and bytes in all.

    Raises:
        StoreFormatError: there is no store. StoreLockedError: a server has it open. ConfigError: no such snapshot, or
        the store has a standby or is one: that one has later steps.
        StoreCorruptError: the snapshot is damaged; the store is as it was.
    """
    identity = require_identity(folders)
    require_alone(folders[0])
    inside = snapshot_folders(folders, step)
    read_record(inside[0])
    report = verify(inside, progress)
    if report.damaged:
        raise StoreCorruptError(
            f"the snapshot of step {step} has {counted(report.damaged, 'damaged chunk')}, and the store stays as it "
            f"is; the first: {report.first_damage}"
        )
    writer = _writer(folders, identity, restoring=True)
    try:
        writer.restore_snapshot(step)
        restore_record(inside[0], folders[0], step)
    finally:
        writer.close()


def remove(folders: list[Path], step: int) -> None:
    """Remove a snapshot, also while a server has the store open; gives back what nothing else shares.

    Raises:
        StoreFormatError: there is no store. ConfigError: no such snapshot.
    """
    require_identity(folders)
    native.remove_snapshot(_texts(folders), step)


def _texts(folders: list[Path]) -> list[str]:
    return [str(folder) for folder in folders]


def _writer(folders: list[Path], identity: StoreIdentity, *, restoring: bool = False) -> native.StoreWriter:
    writer = open_writer(folders, identity, restoring=restoring)
    say_findings(writer)
    return writer


def _look_at(folders: list[Path], step: int) -> SnapshotInfo:
    inside = snapshot_folders(folders, step)
    stats = [path.stat() for folder in inside for path in folder.rglob("*") if path.is_file()]
    own = sum(stat.st_blocks * _DISK_BLOCK_BYTES for stat in stats if stat.st_nlink == 1)
    taken_at = datetime.fromtimestamp((inside[0] / SNAPSHOT_RECORD_NAME).stat().st_mtime, timezone.utc)
    return SnapshotInfo(step, taken_at, own)
