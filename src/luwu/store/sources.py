"""A checkpoint as a source of a store's first values: the tensor of each parameter, and tensors that do not fit."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from luwu.core.errors import CheckpointError
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.store.checkpoint import listed

_COMPARE_ELEMENTS = 1 << 20

OTHER_CHECKPOINT = "name a checkpoint of this model, or the configuration that belongs to it"
"""Advice on a checkpoint that is not the model's, for messages."""


class TensorReader(Protocol):
    """Interface of a checkpoint, as a source uses it; `CheckpointReader` has it."""

    @property
    def path(self) -> Path:
        """Path of the checkpoint, for messages."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files it consists of."""
        ...

    def names(self) -> tuple[str, ...]:
        """Return the names of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        ...

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor."""
        ...

    def read_range(self, name: str, first: int, count: int) -> Tensor:
        """Elements of a tensor seen as flat."""
        ...


class CheckpointSource:
    """Parameters from a checkpoint, at step 0.

    Every parameter must be there under one of its names, with its shape. Tied parameters that are there under
    several names must have the same bits under each of them.

    Args:
        reader: of the checkpoint.
        manifest: of the model.
        ignore: regular expressions: tensors that may be there without being a parameter, such as buffers.

    Raises:
        CheckpointError: tensors are missing, or there are others, or a shape or dtype is another.
    """

    def __init__(self, reader: TensorReader, manifest: Manifest, ignore: Iterable[str] = ()) -> None:
        self._reader = reader
        self._names = match_parameters(reader, manifest, ignore)

    @property
    def origin(self) -> Mapping[str, Any]:
        """The files, with their sizes and times of change."""
        return {"kind": "safetensors", "files": described_files(self._reader.files)}

    @property
    def step(self) -> int:
        """Step of the values: 0, as a checkpoint without optimizer states begins training anew."""
        return 0

    def updates(self, block: BlockManifest) -> int:
        """Return 0: no step has updated a block yet."""
        return 0

    def read(self, parameter: ParameterManifest, first: int, count: int) -> Tensor:
        """Elements of a parameter, flat, in the checkpoint's dtype."""
        return self._reader.read_range(self._names[parameter.name], first, count)

    def read_moments(self, parameter: ParameterManifest, first: int, count: int) -> list[Tensor]:
        """Return none: the checkpoint has no optimizer states."""
        return []


def described_files(files: Iterable[Path]) -> list[list[Any]]:
    """Path, size and time of change of each file."""
    return [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def match_parameters(reader: TensorReader, manifest: Manifest, ignore: Iterable[str] = ()) -> dict[str, str]:
    """Return the tensor of each of the manifest's parameters by their names; all else as for `CheckpointSource`."""
    parameters = [parameter for block in manifest.blocks for parameter in block.parameters]
    there = set(reader.names())
    found = {each.name: [name for name in (each.name, *each.aliases) if name in there] for each in parameters}
    missing = [name for name, names in found.items() if not names]
    used = {name for names in found.values() for name in names}
    extra = extra_names(reader, used, ignore)
    if missing or extra:
        raise CheckpointError(
            f"{reader.path}: expected the model's {len(parameters)} tensors; missing are {len(missing)} "
            f"({listed(missing)}), and {len(extra)} are not the model's ({listed(extra)}); {OTHER_CHECKPOINT}"
        )
    for parameter in parameters:
        for name in found[parameter.name]:
            check_tensor(reader, name, parameter.shape)
        for other in found[parameter.name][1:]:
            _check_tied(reader, found[parameter.name][0], other, parameter.numel)
    return {name: names[0] for name, names in found.items()}


def extra_names(reader: TensorReader, known: Container[str], ignore: Iterable[str] = ()) -> list[str]:
    """Return the checkpoint's tensors that are not known and match none of the regular expressions."""
    patterns = [re.compile(pattern) for pattern in ignore]
    return [name for name in reader.names() if name not in known and not any(each.search(name) for each in patterns)]


def check_tensor(reader: TensorReader, name: str, wanted: tuple[int, ...], *, floating: bool = True) -> None:
    """Compare a tensor's shape and dtype with those of the model's tensor.

    Args:
        reader: of the checkpoint.
        name: of the tensor there.
        wanted: shape in the model.
        floating: the model has floating point numbers there, which a quantised tensor does not hold.

    Raises:
        CheckpointError: the shape is another, or the tensor is quantised.
    """
    shape, dtype = reader.shape(name), reader.dtype(name)
    if shape != wanted:
        raise CheckpointError(
            f"{reader.path}: tensor {name}: expected shape {list(wanted)}, found {list(shape)}; {OTHER_CHECKPOINT}"
        )
    if floating and is_quantised(dtype):
        raise CheckpointError(
            f"{reader.path}: tensor {name}: expected float32, bfloat16, float16 or float64, found {dtype}; name a "
            "checkpoint that is not quantised"
        )


def is_quantised(dtype: torch.dtype) -> bool:
    """Return True if numbers of this dtype need a scale to be parameters: integers, and floats of one byte."""
    return not dtype.is_floating_point or dtype.itemsize < 2


def _check_tied(reader: TensorReader, one: str, other: str, numel: int) -> None:
    for first in range(0, numel, _COMPARE_ELEMENTS):
        count = min(_COMPARE_ELEMENTS, numel - first)
        if not torch.equal(reader.read_range(one, first, count), reader.read_range(other, first, count)):
            raise CheckpointError(
                f"{reader.path}: tensors {one} and {other} are one parameter of the model, but their values differ; "
                "untie them in the configuration (tie_word_embeddings), or remove the one that does not count"
            )
