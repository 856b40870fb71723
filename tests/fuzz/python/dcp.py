"""A torch.distributed.checkpoint: its metadata and the archives with its tensors, damaged or made up.

torch reads the metadata with pickle, which runs what a file tells it to: here it may make nothing but metadata.
"""

from __future__ import annotations

import io
import pickle
from typing import Any
from unittest.mock import patch

import torch
from tests.fuzz.python.support import Input, allowing, scratch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from luwu.errors import CheckpointError
from luwu.store.dcp_source import METADATA_NAME, DcpReader

VALUES = torch.arange(6, dtype=torch.float32).reshape(2, 3)
FILE = "__0_0.distcp"
NAMES = ("a", "b")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex128)
_MOST_READ = 64


def _archive() -> bytes:
    with io.BytesIO() as file:
        torch.save(VALUES, file)
        return file.getvalue()


ARCHIVE = _archive()


def _metadata(given: Input) -> Metadata:
    """Metadata of two tensors in pieces, whose numbers the input may change."""

    def numbers(honest: tuple[int, ...]) -> torch.Size:
        how = given.number()
        if how % 4 < 3:
            return torch.Size(honest)
        return torch.Size([int.from_bytes(given.bytes(1 + how // 128 * 7), "little", signed=True) for _ in honest])

    tensors, storage = {}, {}
    for name in NAMES:
        chunks = []
        for row in range(2):
            chunk = ChunkStorageMetadata(numbers((row, 0)), numbers((1, 3)))
            chunks.append(chunk)
            (offset, length) = numbers((row * len(ARCHIVE), len(ARCHIVE)))
            path = FILE if given.number() % 16 else given.bytes(12).decode("latin-1")
            storage[MetadataIndex(name, chunk.offsets)] = filesystem._StorageInfo(path, offset, length)
        dtype = DTYPES[given.number() // 64]
        tensors[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), numbers((2, 3)), chunks)
    return Metadata(tensors, storage_data=storage)


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("torch.distributed.checkpoint") or (module, name) in KNOWN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


KNOWN = {
    ("torch", "Size"), ("collections", "OrderedDict"), ("torch", "float32"), ("torch", "strided"),
    ("torch.serialization", "_get_layout"),
}  # fmt: skip


def _patched(content: bytes, given: Input) -> bytes:
    """The content with a few bytes replaced."""
    for _ in range(given.number() % 4):
        at = given.number(2) % len(content)
        part = given.bytes(1 + given.number() % 8)
        content = content[:at] + part + content[at + len(part) :]
    return content[: given.number(2)] if given.number() % 16 == 15 else content


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    row = io.BytesIO()
    torch.save(VALUES[1:].clone(), row)
    first = io.BytesIO()
    torch.save(VALUES[:1].clone(), first)
    content = first.getvalue().ljust(len(ARCHIVE), b"\0") + row.getvalue().ljust(len(ARCHIVE), b"\0")
    folder = scratch()
    described = pickle.dumps(_metadata(given))
    (folder / METADATA_NAME).write_bytes(_patched(described, given) if mode & 1 else described)
    (folder / FILE).write_bytes(_patched(content, given) if mode & 2 else content)
    with patch.object(filesystem.pickle, "load", lambda file: _Restricted(file).load()):
        reader = allowing(CheckpointError, lambda: DcpReader(folder))
    if reader is None:
        return
    assert all(file.parent == folder for file in reader.files) or mode is not None
    for name in reader.names():
        count = min(_MOST_READ, max(0, torch.Size(reader.shape(name)).numel()))
        values = allowing(CheckpointError, lambda name=name, count=count: reader.read_range(name, 0, count))
        assert values is None or values.numel() == count, "a range has its elements"
        if not mode & 3 and values is not None and values.dtype == VALUES.dtype:
            known = set(VALUES.flatten().tolist())
            assert set(values.tolist()) <= known, "values are those that were saved"
