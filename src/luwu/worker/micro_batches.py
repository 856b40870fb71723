"""Micro-batches inside a unit: the arguments with the rows of the batch, their cuts, and the joined outputs.

A unit's call is cut into slices of a few rows. All of them run while its values are held, so a block is still pulled
and pushed once, however many slices there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from luwu.core.errors import ConfigError
from luwu.worker.flatten import Unit

_WITHOUT_ROWS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, Enum)
"""Arguments of these types, and functions and modules, are the same for every slice."""


class MicroBatches:
    """Cuts the calls of units, but of outer ones, into slices of at most ``size`` rows; None cuts nothing.

    Raises:
        ConfigError: ``size`` is not positive, or a unit is one of torch's modules that has not the batch first.
    """

    def __init__(self, units: list[Unit], size: int | None) -> None:
        if size is not None and size < 1:
            raise ConfigError(f"micro_batch_size: expected at least 1, or None, found {size}")
        self._size = size
        self._rows: int | None = None
        cut = [unit for unit in units[1:] if not unit.outer]
        self._mixing = {unit.index: _modules_that_mix_rows(unit.module) for unit in cut}
        if size is not None:
            for unit in cut:
                _check_batch_first(unit)

    @contextmanager
    def batch_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Context manager around the model's forward: its first tensor argument has the rows of the batch."""
        outer, self._rows = self._rows, _rows_of(args, kwargs) if self._size is not None else None
        try:
            yield
        finally:
            self._rows = outer

    def cut(self, unit: Unit, leaves: list[Any], structure: TreeSpec) -> Slices:
        """Decide how a call of the unit is cut; ``structure`` tells how the leaves make up its arguments.

        Raises:
            ConfigError: it cannot be told which arguments have rows, or the unit's result for a row depends on others.
        """
        if self._size is None or self._rows is None or self._rows <= self._size:
            return Slices(unit, [], [])
        if not any(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
            return Slices(unit, [], [])
        opaque = next((index for index, leaf in enumerate(leaves) if not _is_plain(leaf)), None)
        if opaque is not None:
            if not torch.is_grad_enabled():  # a cache of keys and values: generation is one call for all rows
                return Slices(unit, [], [])
            raise ConfigError(
                f"block {unit.name}: {_name(leaves, structure, opaque)} is a {type(leaves[opaque]).__name__}, of which "
                "micro_batch_size cannot tell whether it has rows of the batch; expected tensors, numbers and "
                "containers of them: register it with torch.utils._pytree, or, for a cache, set use_cache=False"
            )
        self._check_rows_are_independent(unit)
        sizes = [self._size] * (self._rows // self._size)
        if self._rows % self._size:
            sizes.append(self._rows % self._size)
        return Slices(unit, _positions(unit, leaves, structure, self._rows), sizes)

    def _check_rows_are_independent(self, unit: Unit) -> None:
        for name, module in self._mixing[unit.index]:
            if module.training or module.running_mean is None:
                raise ConfigError(
                    f"block {unit.name}: {name or 'it'} is a {type(module).__name__}, whose result for a row depends "
                    "on the others, so micro_batch_size would change it; put it in eval mode, use GroupNorm or "
                    "LayerNorm, or leave micro_batch_size out"
                )


class Slices:
    """Cut of one call of a unit: ``positions`` are the leaves with rows, ``sizes`` the rows of each slice."""

    def __init__(self, unit: Unit, positions: list[int], sizes: list[int]) -> None:
        self._unit = unit
        self._positions = positions
        self._sizes = sizes

    @property
    def several(self) -> bool:
        """True if there is more than one slice."""
        return len(self._sizes) > 1

    def of(self, leaves: list[Any]) -> list[list[Any]]:
        """Return the leaves of each slice."""
        if not self.several:
            return [leaves]
        # One split rather than a view for each slice: its backward puts the gradients together in one go.
        parts = {position: leaves[position].split(self._sizes) for position in self._positions}
        return [
            [parts[position][index] if position in parts else leaf for position, leaf in enumerate(leaves)]
            for index in range(len(self._sizes))
        ]

    def join(self, outputs: list[Any]) -> Any:
        """Join the outputs of the slices: tensors with their rows, and other values that all slices agree on.

        Raises:
            ConfigError: outputs that neither have the slice's rows nor are the same for every slice.
        """
        if not self.several:
            return outputs[0]
        flat, structures = zip(*(tree_flatten(output) for output in outputs), strict=True)
        if any(structure != structures[0] for structure in structures):
            raise ConfigError(f"block {self._unit.name}: expected outputs of one structure for all rows, found several")
        joined = [self._join_leaf(list(parts)) for parts in zip(*flat, strict=True)]
        return tree_unflatten(joined, structures[0])

    def _join_leaf(self, parts: list[Any]) -> Any:
        first = parts[0]
        if isinstance(first, Tensor):
            if all(part.dim() and part.size(0) == size for part, size in zip(parts, self._sizes, strict=True)):
                return torch.cat(parts)
            if all(part is first or torch.equal(part, first) for part in parts):
                return first  # made of no row
            found = f"a tensor of shape {list(first.shape)}"
        else:
            if all(part is first or part == first for part in parts):
                return first
            found = f"a {type(first).__name__}"
        raise ConfigError(
            f"block {self._unit.name}: expected outputs with one row for each of the {self._sizes[0]} of a "
            f"micro-batch, or such that do not depend on rows, found {found}, different for every micro-batch; compute "
            "what needs the whole batch outside the block, or leave micro_batch_size out"
        )


def _positions(unit: Unit, leaves: list[Any], structure: TreeSpec, rows: int) -> list[int]:
    """Find the leaves whose first dimension is the batch's.

    A tensor with fewer dimensions than the main one may have another dimension first, such as positions of tokens. Its
    first dimension is the batch if no other dimension has that size.
    """
    tensors = {index: leaf for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()}
    found = [index for index, leaf in tensors.items() if leaf.size(0) == rows]
    if not found:
        shapes = ", ".join(str(list(leaf.shape)) for leaf in tensors.values())
        raise ConfigError(
            f"block {unit.name}: expected an argument with the {rows} rows of the model's first tensor argument as its "
            f"first dimension, to cut it into micro-batches, found shapes {shapes}; put the batch first, leave the "
            "block out of `blocks`, or leave micro_batch_size out"
        )
    main = next((leaves[index] for index in found if leaves[index].is_floating_point()), leaves[found[0]])
    if any(rows in leaf.shape[1:-1] for leaf in tensors.values()):
        for index in found:
            if leaves[index].dim() < main.dim():
                raise ConfigError(
                    f"block {unit.name}: {_name(leaves, structure, index)} of shape {list(leaves[index].shape)} may "
                    f"have the batch first, or another dimension of {rows}, so micro_batch_size cannot tell whether to "
                    "cut it; use a batch of another size, or give the argument a first dimension of 1"
                )
    return found


def _rows_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    leaves, _ = tree_flatten((args, kwargs))
    return next((leaf.size(0) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), None)


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, *_WITHOUT_ROWS)) or callable(leaf)


def _name(leaves: list[Any], structure: TreeSpec, index: int) -> str:
    paths, _ = tree_flatten_with_path(tree_unflatten(leaves, structure))
    return f"argument {keystr(paths[index][0][1:])}"  # after whether it is one by position or by name


def _modules_that_mix_rows(module: nn.Module) -> list[tuple[str, _BatchNorm]]:
    return [(name, child) for name, child in module.named_modules() if isinstance(child, _BatchNorm)]


def _check_batch_first(unit: Unit) -> None:
    """Refuse torch's own layers where tokens come first: the wrong dimension would be cut, without an error.

    A user's module may well turn the dimensions itself.
    """
    if not type(unit.module).__module__.startswith("torch.nn."):
        return
    if any(getattr(module, "batch_first", True) is False for module in unit.module.modules()):
        raise ConfigError(
            f"block {unit.name}: {type(unit.module).__name__} was made with batch_first=False, expected "
            "batch_first=True where micro_batch_size cuts batches"
        )
