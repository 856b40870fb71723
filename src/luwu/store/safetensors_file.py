"""A safetensors file: its header, checked in full, and its tensors, read in parts.

The format: 8 bytes with the header's length (little-endian), the header as JSON, the tensors' bytes. The header names
each tensor's dtype, shape and place; see the safetensors project's README. Reading in parts is why this is not left to
that library: a tensor may be larger than memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from luwu.core.errors import CheckpointError

LENGTH_BYTES = 8
GIT_LFS_START = b"version "
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
METADATA_KEY = "__metadata__"

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The format's dtype names that a checkpoint may use here."""

FORMAT_DTYPES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
"""Dtype names of the format by torch's dtypes."""


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of a file: ``offset`` is its first byte in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.numel * self.dtype.itemsize


class SafetensorsFile:
    """A file whose header has been read and whose length fits it; closed again until something is read.

    Attributes:
        path: the file.
        tensors: name to place.
        metadata: what whoever wrote the file put beside the tensors.

    Raises:
        CheckpointError: it is missing, cannot be read, is no such file, or is shorter or longer than its header says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        header, data_offset, file_bytes = _read_header(path)
        raw_metadata = header.pop(METADATA_KEY, None)
        texts = raw_metadata.items() if isinstance(raw_metadata, dict) else ()
        self.metadata: dict[str, str] = {name: text for name, text in texts if isinstance(text, str)}
        self.tensors = {name: _place_of(path, name, entry, data_offset) for name, entry in header.items()}
        _check_extent(path, self.tensors, data_offset, file_bytes)

    def read(self, name: str, first: int, count: int) -> Tensor:
        """Elements ``first`` to ``first + count`` of a tensor seen as flat; the caller knows that they are there.

        Raises:
            CheckpointError: the file became shorter, or the system cannot read it.
        """
        place = self.tensors[name]
        values = torch.empty(count, dtype=place.dtype)
        if count == 0:
            return values
        offset = place.offset + first * place.dtype.itemsize
        target = values.view(torch.uint8).numpy().data
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            while target:
                done = os.preadv(self._descriptor, [target], offset)
                if done == 0:
                    raise CheckpointError(
                        f"{self.path}: ended at byte {offset} while tensor {name} was read; do not change it meanwhile"
                    )
                target, offset = target[done:], offset + done
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return values

    def close(self) -> None:
        """Give the file descriptor back; the next read opens the file again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):  # of a file that was only read nothing can be lost, and the descriptor is gone
                os.close(descriptor)


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Returns the header, the offset of the tensors' bytes, and the file's length."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            start = file.read(LENGTH_BYTES)
            if start == GIT_LFS_START:
                raise CheckpointError(
                    f"{path}: expected a safetensors file, found Git LFS's note of where it is; download it itself, "
                    "with `git lfs pull` for example"
                )
            length = int.from_bytes(start, "little")
            if file_bytes < LENGTH_BYTES or length > MAX_HEADER_BYTES:
                raise _no_safetensors(path, f"{file_bytes} bytes, the first of which name a header of {length}")
            if LENGTH_BYTES + length > file_bytes:
                raise CheckpointError(
                    f"{path}: half-downloaded: expected a header of {length} bytes, found a file of {file_bytes}; "
                    "download it again"
                )
            text = file.read(length)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _without_duplicates(path, pairs))
    except (ValueError, RecursionError) as error:
        raise _no_safetensors(path, str(error)) from error
    if not isinstance(header, dict):
        raise _no_safetensors(path, f"a {type(header).__name__}")
    return header, LENGTH_BYTES + length, file_bytes


def _without_duplicates(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise CheckpointError(f"{path}: the header names {name} twice; save the model again")
        found[name] = value
    return found


def _place_of(path: Path, name: str, entry: Any, data_offset: int) -> TensorPlace:
    try:
        start, end = (int(offset) for offset in entry["data_offsets"])
        shape = tuple(int(size) for size in entry["shape"])
        dtype_name = str(entry["dtype"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{path}: tensor {name}: expected dtype, shape and data_offsets, found {entry!r}; download it again"
        ) from error
    dtype = TORCH_DTYPES.get(dtype_name)
    if dtype is None:
        known = ", ".join(TORCH_DTYPES)
        raise CheckpointError(f"{path}: tensor {name}: expected a dtype of {known}, found {dtype_name}; convert it")
    place = TensorPlace(dtype, shape, data_offset + start)
    if min(shape, default=0) < 0 or start < 0 or end - start != place.nbytes:
        raise CheckpointError(
            f"{path}: tensor {name}: expected {place.nbytes} bytes for shape {list(shape)} of {dtype_name}, found "
            f"bytes {start} to {end}; download it again"
        )
    return place


def _check_extent(path: Path, tensors: Mapping[str, TensorPlace], data_offset: int, file_bytes: int) -> None:
    """The tensors must fill the file from the header to its end, without holes and without overlapping."""
    end = data_offset
    for name, place in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if place.offset != end:
            raise CheckpointError(
                f"{path}: tensor {name}: expected to begin at byte {end}, where the one before ends, found "
                f"{place.offset}; download it again"
            )
        end += place.nbytes
    if end > file_bytes:
        raise CheckpointError(f"{path}: half-downloaded: expected {end} bytes, found {file_bytes}; download it again")
    if end < file_bytes:
        raise CheckpointError(f"{path}: expected {end} bytes, found {file_bytes}; download it again")


def _no_safetensors(path: Path, found: str) -> CheckpointError:
    return CheckpointError(f"{path}: expected a safetensors file, found {found}; download it again, or name another")


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions")
