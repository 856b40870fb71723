"""Dtypes of units, and the conversion of tensors that enter a module of another dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from luwu.core.errors import ConfigError
from luwu.core.manifest import DTYPES, ROOT_NAME
from luwu.worker.caches import is_cache
from luwu.worker.flatten import Unit
from luwu.worker.select import has_parameters, matches

BlockDtypes = (
    Mapping[str, torch.dtype] | Mapping[type[nn.Module], torch.dtype] | Mapping[type[nn.Module] | str, torch.dtype]
)
"""Dtype of blocks by module class, by pattern of module names, or by ``<root>``."""

Modules = list[tuple[str, nn.Module]]

_LISTED = 20


def check_dtype(dtype: object, what: str) -> None:
    """Raise ConfigError unless a block can have this dtype; ``what`` names the setting in the message."""
    if not any(dtype is getattr(torch, name) for name in DTYPES):
        raise ConfigError(f"{what}: expected one of {', '.join(f'torch.{name}' for name in DTYPES)}, found {dtype}")


def choose_dtypes(
    model: nn.Module, selected: Modules, wanted: BlockDtypes | None
) -> tuple[Modules, dict[str, torch.dtype]]:
    """Return the units, and by name the dtypes of those that ``wanted`` names; the first entry that matches counts.

    A module in the root that an entry matches becomes a unit of its own.

    Raises:
        ConfigError: an entry matches nothing, or a part of a unit, or names a dtype that no block can have.
    """
    units = list(selected)
    dtypes: dict[str, torch.dtype] = {}
    for entry, dtype in (wanted or {}).items():
        check_dtype(dtype, f"block_dtypes[{entry!r}]")
        if entry == ROOT_NAME:
            dtypes.setdefault(ROOT_NAME, dtype)
            continue
        found = list(_matched(model, units, entry))
        if not found:
            names = [ROOT_NAME, *(name for name, _ in units), *_parts(model, units)]
            listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
            raise ConfigError(f"block_dtypes: {entry!r} matches no block; the model has: {listed}")
        for name, module in found:
            if all(module is not unit for _, unit in units):
                units.append((name, module))
            dtypes.setdefault(name, dtype)
    order = {id(module): index for index, module in enumerate(model.modules())}
    return sorted(units, key=lambda unit: order[id(unit[1])]), dtypes


def check_ties(units: list[Unit]) -> None:
    """Check that no unit computes with a tied parameter of another dtype, which lies in the root.

    Raises:
        ConfigError: names the parameter.
    """
    root = units[0]
    for unit in units[1:]:
        if unit.dtype is root.dtype:
            continue
        inside = {id(module) for module in unit.module.modules()}
        for block in root.blocks:
            for slot in block.slots:
                if any(id(module) in inside for module, _ in slot.places):
                    raise ConfigError(
                        f"block_dtypes: {unit.name} shares the parameter {slot.name} with another part of the model, "
                        f"so it lies in the root block; expected {unit.name} to have the root's {root.dtype}, found "
                        f"{unit.dtype}: give {ROOT_NAME!r} that dtype, too"
                    )


def cast_floating(values: Any, dtype: torch.dtype) -> Any:
    """Convert the floating-point tensors within nested containers, but for float64, to this dtype."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype is not torch.float64 else tensor

    return tree_map_only(Tensor, cast, values, is_leaf=is_cache)


def _matched(model: nn.Module, units: Modules, entry: type[nn.Module] | str) -> Iterator[tuple[str, nn.Module]]:
    """Return the units that an entry matches, and the outermost modules in the root that hold no unit."""
    of_units, around = _ids_of(model, units)
    seen: set[int] = set()

    def visit(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
        for name, child in module.named_children():
            if id(child) in seen or not has_parameters(child):
                continue
            seen.add(id(child))
            path = prefix + name
            if matches(path, child, entry) and id(child) not in around:
                yield path, child
            elif id(child) in of_units:
                _refuse_inner(path, child, entry)
            else:
                yield from visit(child, path + ".")

    return visit(model, "")


def _refuse_inner(unit: str, module: nn.Module, entry: type[nn.Module] | str) -> None:
    for name, part in module.named_modules(prefix=unit):
        if part is not module and matches(name, part, entry):
            raise ConfigError(
                f"block_dtypes: {entry!r} matches {name} inside block {unit}; a block has one dtype: name the block, "
                "or choose smaller `blocks`"
            )


def _parts(model: nn.Module, units: Modules) -> Iterator[str]:
    """Names of the outermost modules in the root that have parameters and hold no unit."""
    of_units, around = _ids_of(model, units)

    def visit(module: nn.Module, prefix: str) -> Iterator[str]:
        for name, child in module.named_children():
            if id(child) in around:
                yield from visit(child, f"{prefix}{name}.")
            elif id(child) not in of_units and has_parameters(child):
                yield prefix + name

    return visit(model, "")


def _ids_of(model: nn.Module, units: Modules) -> tuple[set[int], set[int]]:
    """Ids of the units' modules, and of those around them."""
    of_units = {id(module) for _, module in units}
    around = {
        id(module)
        for module in model.modules()
        if id(module) not in of_units and any(id(part) in of_units for part in module.modules())
    }
    return of_units, around
