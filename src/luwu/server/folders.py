"""A store as a server opens it for the workers of this host, and its state before that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from luwu.core import native
from luwu.core.division import Standing
from luwu.core.durability import EACH_STEP, CommitPoints
from luwu.core.errors import LuwuError
from luwu.core.manifest import Manifest
from luwu.core.native import block_specs
from luwu.store.folders import ORIGIN_NAME, read_identity
from luwu.store.opening import Store, open_store, reader_of
from luwu.store.run_record import Claim, Counts, claim_store
from luwu.store.settings import NO_SNAPSHOTS, Snapshots
from luwu.store.standby_record import require_alone


def open_server(
    folders: list[Path],
    manifest: Manifest,
    memory_bytes: int,
    workers: int,
    optimizer_threads: int,
    snapshots: Snapshots = NO_SNAPSHOTS,
    *,
    read_only: bool = False,
    disk_full_wait_seconds: float = 0.0,
    commit_points: CommitPoints = EACH_STEP,
    trims: int = 0,
) -> native.ShmServer:
    """Open or create a store (`open_store`) and serve it to this host's workers through shared memory.

    One that is opened to be read, such as a snapshot, is not locked, and makes no steps. ``trims``: see
    `luwu.core.aggregation.trims_for`.
    """
    if not read_only:
        require_alone(folders[0])

    def start(store: Store) -> native.ShmServer:
        return native.ShmServer(
            [str(folder) for folder in store.folders],
            store.identity.uuid,
            store.create,
            block_specs(store.manifest),
            store.manifest.chunk_elements,
            store.manifest.optimizer,
            memory_bytes,
            workers,
            optimizer_threads,
            snapshots,
            read_only,
            disk_full_wait_seconds,
            commit_points,
            trims,
        )

    return open_store(folders, manifest, start)


def claims_of(folder: Path) -> Callable[[Claim, Counts], tuple[Counts, str]]:
    """Return `claim_store` for the store whose first folder this is."""

    def claim(wanted: Claim, counts: Counts) -> tuple[Counts, str]:
        return claim_store(folder, wanted, counts, imported=(folder / ORIGIN_NAME).exists())

    return claim


def standing_of(folders: list[Path], new_uuid: str, commit_points: str = "") -> Standing:
    """Return the state of the store in these folders before it is opened.

    A store that does not exist gets the new uuid. ``commit_points``: see `Standing`.
    """
    identity = read_identity(folders[0])
    if identity is None:
        return Standing(new_uuid, (), commit_points)
    return Standing(identity.uuid, tuple(reader_of(folders, identity).steps), commit_points)


def step_at_rest(folders: list[Path]) -> int:
    """Return the committed step of the store in these folders, for logs; 0 where none can be read."""
    try:
        identity = read_identity(folders[0])
        return 0 if identity is None else int(reader_of(folders, identity).step)
    except LuwuError:  # whoever opens the store is told
        return 0
