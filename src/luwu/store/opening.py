"""Opening stores: for the server that trains, for whoever reads, and for whoever writes without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from luwu.core import native
from luwu.core.errors import (
    ManifestMismatchError,
    StoreError,
    StoreLockedError,
)
from luwu.core.manifest import Manifest, first_difference
from luwu.core.native import block_specs
from luwu.store.findings import Opened, say_findings
from luwu.store.folders import (
    LOCK_NAME,
    STORE_LOCK_NAME,
    UNFINISHED_IMPORT_NAME,
    StoreIdentity,
    make_folder,
    no_store,
    read_identity,
    require_stripes,
    write_identity,
)
from luwu.store.parts import is_there

CoreT = TypeVar("CoreT", bound=Opened)


@dataclass(frozen=True)
class Store:
    """A store that a native server has open."""

    folders: list[Path]
    identity: StoreIdentity
    create: bool

    @property
    def manifest(self) -> Manifest:
        """Manifest of the store, with the store's own chunk size."""
        return self.identity.manifest


def open_store(
    folders: list[Path],
    manifest: Manifest,
    start: Callable[[Store], CoreT],
    *,
    with_chunks: bool = False,
    uuid: str = "",
) -> CoreT:
    """Open the store in these folders for this manifest, or create it, and start a native server over it.

    Args:
        folders: one or more; the first has the manifest file.
        manifest: the model's.
        start: makes the native server.
        with_chunks: the model's chunk size must be the store's.
        uuid: id that the store gets, or must have; empty: any.

    Raises:
        ManifestMismatchError: the store was made for another model or job.
        StoreError: an import into it was not finished.
        LuwuError: what the native core refuses, see `luwu.errors`.
    """
    for folder in folders:
        make_folder(folder)
    if is_there(folders[0] / UNFINISHED_IMPORT_NAME):
        raise StoreError(
            f"the store at {folders[0]} holds an import that was not finished; give the same luwu import again, which "
            f"finishes it, or remove the folder"
        )
    identity = read_identity(folders[0])
    if identity is not None:
        if manifest.optimizer != identity.manifest.optimizer:
            raise ManifestMismatchError(
                f"the store at {folders[0]} keeps the states of {identity.manifest.optimizer}, and the model was "
                f"parallelized for {manifest.optimizer}; name the optimizer it was made with in "
                "luwu.parallelize(optimizer=...), or another folder (nothing was changed)"
            )
        difference = first_difference(manifest, identity.manifest, with_chunks=with_chunks)
        if difference is not None and identity.manifest.is_part and not manifest.is_part:
            raise ManifestMismatchError(
                f"the store at {folders[0]} is that of one of several servers, and this one was named alone; name all "
                "servers of the job, in the same order as when the stores were made (nothing was changed)"
            )
        if difference is not None:
            raise ManifestMismatchError(
                f"the store at {folders[0]} was made for another model: {difference}; "
                "use the model it was made for, or another folder (nothing was changed)"
            )
        require_stripes(folders, identity.stripes)
        if uuid and identity.uuid != uuid:
            raise ManifestMismatchError(
                f"the store at {folders[0]} belongs to another job than those of the other servers; name the same "
                "servers in the same order as when it was made, or another folder (nothing was changed)"
            )
    create = identity is None
    identity = identity or StoreIdentity(uuid or uuid4().hex, len(folders), manifest)
    core = start(Store(folders, identity, create))
    say_findings(core)
    if create:
        write_identity(folders, identity)
    return core


def lock_folder(folder: Path, what: str) -> native.FileLock:
    """Lock a folder for this process until the lock is closed; raises StoreLockedError with the process that has it."""
    lock = native.FileLock(str(folder / LOCK_NAME), False)
    if not lock.held:
        raise StoreLockedError(
            f"the {what} {folder} is in use by process {lock.owner}; stop that process or use another folder"
        )
    return lock


def lock_made(folders: list[Path]) -> native.FileLock:
    """Make a store's folders where they are missing, and lock them for this process; raises as the two that do it."""
    for folder in folders:
        make_folder(folder)
    return lock_folder(folders[0], "store")


@contextmanager
def held_at_rest(folders: list[Path]) -> Iterator[None]:
    """Context manager: servers and imports stay out of a store while it is read; any number may read it at once.

    Raises:
        StoreLockedError: a server or an import has it open.
    """
    with ExitStack() as held:
        for folder in folders:
            lock = native.FileLock(str(folder / STORE_LOCK_NAME), True)
            if not lock.held:
                raise StoreLockedError(
                    f"the store at {folder} is open in process {lock.owner}, which writes to it; "
                    "stop that process first"
                )
            held.callback(lock.close)
        yield


def open_reader(folders: list[Path]) -> tuple[native.StoreReader, Manifest]:
    """Open a committed store for reading, also while a server has it open.

    Raises:
        StoreFormatError: there is no store in the first folder. Others: see `luwu.errors`.
    """
    identity = read_identity(folders[0])
    if identity is None:
        raise no_store(folders)
    return reader_of(folders, identity), identity.manifest


def open_writer(
    folders: list[Path], identity: StoreIdentity, *, create: bool = False, restoring: bool = False
) -> native.StoreWriter:
    """Open the store that `read_identity` found for writing, or make its files; `restoring`: to go back."""
    return native.StoreWriter(
        [str(folder) for folder in folders],
        identity.uuid,
        create,
        block_specs(identity.manifest),
        identity.manifest.chunk_elements,
        identity.manifest.optimizer,
        restoring,
    )


def reader_of(folders: list[Path], identity: StoreIdentity) -> native.StoreReader:
    """Open the store that `read_identity` found for reading, committed or not."""
    return native.StoreReader(
        [str(folder) for folder in folders],
        identity.uuid,
        block_specs(identity.manifest),
        identity.manifest.chunk_elements,
        identity.manifest.optimizer,
    )
