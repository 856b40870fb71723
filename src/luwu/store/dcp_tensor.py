"""Tensors of a torch.distributed.checkpoint, read in parts from the pieces that ranks saved.

A piece lies in a file as ``torch.save`` wrote it: an uncompressed zip archive with a small pickle that describes the
tensor, and its bytes. The pickle is read by a reader that builds nothing but that description.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from luwu.core.errors import CheckpointError

_LOCAL_HEADER_BYTES = 30  # header of a zip archive's entry, before its name and extra field
_MOST_DESCRIPTION_BYTES = 1 << 16  # description of one tensor; torch.save writes some hundred bytes


@dataclass
class SavedPiece:
    """A rectangle of a tensor: its corner and extent, and where its archive lies."""

    name: str
    path: Path
    offset: int
    length: int
    corner: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    _data_offset: int = -1
    _expected_crc: int = 0
    _seen: int = 0  # elements read in a row from the first on, which `_crc` is the checksum of
    _crc: int = 0
    _starts: Any = field(default=None, repr=False)

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return math.prod(self.sizes)

    def fill(self, target: Tensor, first: int, shape: Sequence[int]) -> int:
        """Write this piece's share of the elements from ``first`` on of a flat tensor of this shape.

        Return their number.

        Raises:
            CheckpointError: the file is damaged, or holds something else than it should.
        """
        starts, run = self._runs(shape)
        filled = 0
        begin = max(0, int(np.searchsorted(starts, first, side="right")) - 1)
        for number in range(begin, len(starts)):
            start = int(starts[number])
            low, high = max(start, first), min(start + run, first + target.numel())
            if start >= first + target.numel():
                break
            if low < high:
                self._read(target[low - first : high - first], number * run + low - start)
                filled += high - low
        return filled

    def _runs(self, shape: Sequence[int]) -> tuple[Any, int]:
        """Return where runs of consecutive elements begin in the flat tensor, and the length of the runs."""
        depth = len(shape)
        while depth > 0 and self.sizes[depth - 1] == shape[depth - 1]:
            depth -= 1
        depth = max(depth - 1, 0)  # the dimension along which runs lie
        if self._starts is None:
            starts = np.zeros(1, np.int64)
            for dimension, corner in enumerate(self.corner):
                stride = math.prod(shape[dimension + 1 :])
                count = self.sizes[dimension] if dimension < depth else 1
                starts = (starts[:, None] + (corner + np.arange(count)) * stride).reshape(-1)
            self._starts = starts
        return self._starts, math.prod(self.sizes[depth:])

    def _read(self, target: Tensor, first: int) -> None:
        if self._data_offset < 0:
            self._locate()
        offset = self._data_offset + first * self.dtype.itemsize
        view = target.view(torch.uint8).numpy().data
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                rest = view
                while rest:
                    done = os.preadv(descriptor, [rest], offset)
                    if done == 0:
                        raise self._damaged(f"ended at byte {offset}")
                    rest, offset = rest[done:], offset + done
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._damaged(str(error.strerror)) from error
        self._check(view, first)

    def _check(self, view: memoryview, first: int) -> None:
        """Compare the archive's checksum once the whole piece was read in its order, as an import does."""
        if first == 0:
            self._seen, self._crc = 0, 0
        if first != self._seen:
            return
        self._seen += len(view) // self.dtype.itemsize
        self._crc = zlib.crc32(view, self._crc)
        if self._seen == self.numel and self._crc != self._expected_crc:
            raise self._damaged(f"checksum {self._crc:08x} instead of {self._expected_crc:08x}")

    def _locate(self) -> None:
        """Find the tensor's bytes in the archive, after checking that they lie as they should."""
        try:
            with self.path.open("rb") as file:
                window = _FilePart(file, self.offset, self.length)
                archive = zipfile.ZipFile(window)
                found = {Path(entry.filename).name: entry for entry in archive.infolist()}
                if found["data.pkl"].file_size > _MOST_DESCRIPTION_BYTES:
                    raise self._damaged(f"a description of {found['data.pkl'].file_size} bytes")
                content = archive.read(found["data.pkl"])
                if _remembers_beyond(content):
                    raise self._damaged("a description that asks for memory without end")
                described = _Description(io.BytesIO(content)).load()
                data = next(entry for entry in archive.infolist() if entry.filename.endswith("/data/0"))
                window.seek(data.header_offset + _LOCAL_HEADER_BYTES - 4)
                names = window.read(4)
        except CheckpointError:
            raise
        except Exception as error:  # damaged archives and pickles make their readers raise anything
            raise self._damaged(repr(error)) from error
        dense = _strides(self.sizes)
        if not isinstance(described, _Layout) or described.sizes != self.sizes or described.strides != dense:
            raise self._damaged(f"{described}")
        if data.compress_type != zipfile.ZIP_STORED or described.offset != 0:
            raise self._damaged("compressed bytes, or a part of a larger tensor")
        if data.file_size != self.numel * self.dtype.itemsize:
            raise self._damaged(f"{data.file_size} bytes of data")
        skipped = int.from_bytes(names[:2], "little") + int.from_bytes(names[2:], "little")
        self._data_offset = self.offset + data.header_offset + _LOCAL_HEADER_BYTES + skipped
        self._expected_crc = data.CRC

    def _damaged(self, found: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} at offset {self.offset}: tensor {self.name}: expected {list(self.sizes)} of {self.dtype} as "
            f"torch.save writes it, found {found}; copy or save the checkpoint again"
        )


@dataclass(frozen=True)
class _Layout:
    """Layout of a tensor in its storage."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


class _Description(pickle.Unpickler):
    """Reads the pickle of an archive with one tensor in it; refuses everything else."""

    def persistent_load(self, pid: Any) -> Any:
        """Return the storage of a tensor: a description of its bytes in the archive."""
        return None

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return a function or class that such a pickle may name."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, sizes, strides, *rest: _Layout(offset, tuple(sizes), tuple(strides))
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return object
        raise pickle.UnpicklingError(f"{module}.{name}")


def _remembers_beyond(content: bytes) -> bool:
    """Return True where a pickle numbers an object higher than its bytes can: the reader takes memory for all below."""
    return any(
        isinstance(number, int) and number > len(content)
        for operation, number, _ in pickletools.genops(content)
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT")
    )


class _FilePart(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: Any, offset: int, length: int) -> None:
        self._file = file
        self._offset = offset
        self._length = length
        self._at = 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, target: Any) -> int:
        """Read as many bytes as fit."""
        view = memoryview(target)[: max(0, self._length - self._at)]
        self._file.seek(self._offset + self._at)
        count = int(self._file.readinto(view))
        self._at += count
        return count


def _strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose elements follow each other, as torch counts them."""
    return torch.empty(tuple(sizes), device="meta").stride()
