"""Safetensors on their way out: the header, which is known beforehand, and the division of tensors into files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from luwu.store.safetensors_file import FORMAT_DTYPES, LENGTH_BYTES, METADATA_KEY

_ALIGNMENT = 8  # alignment of the header's length, and so of the tensors' first byte


@dataclass
class Shard:
    """A file's tensors in the order in which they lie there: name to dtype and shape."""

    name: str
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(nbytes_of(dtype, shape) for dtype, shape in self.tensors.values())


def nbytes_of(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * dtype.itemsize


def plan_shards(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], shard_bytes: int) -> list[Shard]:
    """Divide tensors into files of at most ``shard_bytes``, named as by transformers; a larger tensor is alone."""
    shards = [Shard("")]
    for name, (dtype, shape) in tensors.items():
        if shards[-1].tensors and shards[-1].nbytes + nbytes_of(dtype, shape) > shard_bytes:
            shards.append(Shard(""))
        shards[-1].tensors[name] = (dtype, shape)
    for number, shard in enumerate(shards, 1):
        many = len(shards) > 1
        shard.name = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if many else "model.safetensors"
    return shards


def header_of(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> bytes:
    """Return the bytes of a file before the tensors."""
    header: dict[str, object] = {METADATA_KEY: {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        end = offset + nbytes_of(dtype, shape)
        header[name] = {"dtype": FORMAT_DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def as_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes as they lie in a file."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
