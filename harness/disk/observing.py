"""Opens a store as a server does, and reads everything that it and its snapshots hold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from luwu import _native
from luwu.core.manifest import Manifest
from luwu.server.folders import open_server
from luwu.store.folders import MODEL_FOLDER, ORIGIN_NAME, StoreIdentity, read_identity
from luwu.store.opening import reader_of
from luwu.store.origin import require_model_files
from luwu.store.run_record import RUN_NAME
from luwu.store.snapshots import snapshot_folders, snapshot_steps

MEMORY_BYTES = 1 << 26


@dataclass(frozen=True)
class Found:
    """Contents of a store: its committed step and a hash of all values and states, and the same of each snapshot.

    The hash has the files of an imported model, too, and which run and import the store belongs to.
    """

    step: int
    digest: str
    snapshots: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        kept = ", ".join(f"snapshot {step} {digest[:6]}" for step, digest in self.snapshots)
        return f"step {self.step} {self.digest[:6]}" + (f", {kept}" if kept else "")


def observe(folders: list[Path], manifest: Manifest) -> Found:
    """Open a store for training, close it, and read it; raises what opening or reading raises."""
    open_server(folders, manifest, MEMORY_BYTES, 1, 1).close()
    require_model_files(folders[0])
    identity = read_identity(folders[0])
    assert identity is not None, "the server made the store"
    step, digest = _read(folders, identity)
    kept = [_read(snapshot_folders(folders, step), identity) for step in snapshot_steps(folders)]
    return Found(step, digest, tuple(kept))


def _read(folders: list[Path], identity: StoreIdentity) -> tuple[int, str]:
    reader = reader_of(folders, identity)
    if not reader.initialised:
        return -1, ""
    digest = hashlib.blake2b(digest_size=16)
    for file in (*sorted((folders[0] / MODEL_FOLDER).glob("*")), folders[0] / ORIGIN_NAME, folders[0] / RUN_NAME):
        digest.update(f"{file.name}\0".encode() + file.read_bytes() if file.exists() else b"")
    digest.update(repr(list(reader.counts)).encode())
    for block in range(len(identity.manifest.blocks)):
        for chunk in range(len(reader.chunks(block))):
            _add(digest, reader, block, chunk)
    return int(reader.step), digest.hexdigest()


def _add(digest: hashlib.blake2b, reader: _native.StoreReader, block: int, chunk: int) -> None:
    parameters, states = reader.read_chunk(block, chunk, True)
    for array in (parameters, *states):
        digest.update(np.ascontiguousarray(array).tobytes())
