"""Contents of a committed store, block by block."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from luwu.core.native import StoreReader
from luwu.store.opening import open_reader


def read_block(reader: StoreReader, block: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return a block's parameters as bytes, and its fp32 states: [master,] and the optimizer's, such as m and v."""
    chunks = [reader.read_chunk(block, chunk, True) for chunk in range(len(reader.chunks(block)))]
    states = [np.concatenate(planes) for planes in zip(*(states for _, states in chunks), strict=True)]
    return np.concatenate([parameters for parameters, _ in chunks]), states


def planes_of(reader: StoreReader, blocks: int) -> list[np.ndarray]:
    """Return every plane of every block of a store with this number of blocks."""
    planes = []
    for block in range(blocks):
        parameters, states = read_block(reader, block)
        planes += [parameters, *states]
    return planes


def digest_of(reader: StoreReader, blocks: int, first: str) -> str:
    """Return the SHA-256, in hex, of a text and then of every plane of every block of a store."""
    found = hashlib.sha256(first.encode())
    for plane in planes_of(reader, blocks):
        found.update(plane.tobytes())
    return found.hexdigest()


def contents(store: Path) -> list[np.ndarray]:
    """Return every plane of every block of a committed store."""
    reader, manifest = open_reader([store])
    return planes_of(reader, len(manifest.blocks))
