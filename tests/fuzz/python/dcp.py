"""A torch.distributed.checkpoint: its metadata and the archives with its tensors, damaged or made up.

torch reads the metadata with pickle, which runs what a file tells it to: here it may make nothing but metadata.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any
from unittest.mock import patch

import torch
from tests.fuzz.python.support import Input, allowing, put, scratch
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


def _archive(values: torch.Tensor) -> bytes:
    with io.BytesIO() as file:
        torch.save(values, file)
        return file.getvalue()


ROWS = tuple(_archive(row.clone()) for row in VALUES.split(1))


def _metadata(given: Input, lengths: tuple[int, int]) -> Metadata:
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
            offset, length = numbers((row * lengths[0], lengths[row]))
            path = FILE if given.number() % 16 != 15 else given.bytes(12).decode("latin-1")
            if given.number() % 16 != 15:
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


def _made(given: Input) -> bytes:
    """An archive like torch's with another description, other bytes or other compression."""
    honest = zipfile.ZipFile(io.BytesIO(ROWS[0]))
    how = given.number()
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if how & 1 else zipfile.ZIP_STORED) as archive:
            for name in honest.namelist():
                content = honest.read(name)
                if name.endswith("data.pkl"):
                    content = _patched(content, given) if how & 2 else content + bytes(1 << 17) * (how >> 7)
                if not (how & 4 and name.endswith("/data/0")):
                    archive.writestr(name, content + b"x" * (how >> 3 & 1))
        return file.getvalue()


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
    archives = (_made(given) if mode & 4 else ROWS[0], ROWS[1])
    content = b"".join(archives)
    folder = scratch()
    described = pickle.dumps(_metadata(given, (len(archives[0]), len(archives[1]))))
    put(folder / METADATA_NAME, _patched(described, given) if mode & 1 else described, mode // 16)
    (folder / FILE).write_bytes(_patched(content, given) if mode & 2 else content)
    with patch.object(filesystem.pickle, "load", lambda file: _Restricted(file).load()):
        reader = allowing(CheckpointError, lambda: DcpReader(folder))
    if reader is None:
        return
    for name in reader.names():
        count = min(_MOST_READ, max(0, torch.Size(reader.shape(name)).numel()))
        values = allowing(CheckpointError, lambda name=name, count=count: reader.read_range(name, 0, count))
        assert values is None or values.numel() == count, "a range has its elements"
        if count > 1:
            allowing(CheckpointError, lambda name=name, count=count: reader.read_range(name, 1, count - 1))
        if not mode & 7 and values is not None and values.dtype == VALUES.dtype:
            known = set(VALUES.flatten().tolist())
            assert set(values.tolist()) <= known, "values are those that were saved"
