"""A model's layout: its units as `luwu.parallelize` chooses them, and the manifest that a store for it must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from luwu.core.errors import ConfigError
from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS, DEFAULT_OPTIMIZER, Manifest
from luwu.worker.compiled import check_not_around_units
from luwu.worker.dtypes import BlockDtypes, check_ties, choose_dtypes
from luwu.worker.flatten import Unit, flatten, manifest_of
from luwu.worker.outer import select_outer
from luwu.worker.select import Blocks, select_modules


def lay_out(
    model: nn.Module,
    blocks: Blocks = None,
    dtype: torch.dtype = torch.float32,
    block_dtypes: BlockDtypes | None = None,
    *,
    outer: bool = True,
) -> list[Unit]:
    """Return the model's units, the root first.

    ``outer``: large modules outside of ``blocks`` are units of their own; else all of the rest is the root, as in
    stores from before there were outer units.

    Raises:
        ConfigError: an argument cannot work, or there are no parameters, or one cannot be stored.
    """
    selected, others = choose_dtypes(model, select_modules(model, blocks), block_dtypes)
    check_not_around_units(model, [module for _, module in selected])
    units = flatten(model, selected, dtype, others, select_outer(model, selected) if outer else ())
    check_ties(units)
    if not any(unit.blocks for unit in units):
        raise ConfigError(f"model: expected parameters, found none in {type(model).__name__}")
    return units


def describe(
    model: nn.Module,
    blocks: Blocks = None,
    dtype: torch.dtype = torch.float32,
    optimizer: str = DEFAULT_OPTIMIZER,
    block_dtypes: BlockDtypes | None = None,
    *,
    outer: bool = True,
) -> Manifest:
    """Return the manifest that `luwu.parallelize` of the same model, blocks, dtypes and optimizer opens a store with.

    ``outer``: as in `lay_out`.

    Raises:
        ConfigError: a class or pattern matches nothing, blocks cannot have these dtypes, or there are no parameters.
    """
    units = lay_out(model, blocks, dtype, block_dtypes, outer=outer)
    return manifest_of(units, dtype, DEFAULT_CHUNK_ELEMENTS, optimizer)


def choose_layout(
    model: nn.Module,
    blocks: Blocks,
    dtype: torch.dtype,
    block_dtypes: BlockDtypes | None,
    optimizer: str,
    has_store: Callable[[Manifest], bool],
) -> tuple[list[Unit], Manifest]:
    """Return the model's units and their manifest; a store from before there were outer units keeps its blocks.

    Args:
        has_store: tells whether there is a store that was made for a manifest.

    Raises:
        ConfigError: as `lay_out`.
    """
    units = lay_out(model, blocks, dtype, block_dtypes)
    manifest = manifest_of(units, dtype, DEFAULT_CHUNK_ELEMENTS, optimizer)
    if any(unit.outer for unit in units):
        all_root = lay_out(model, blocks, dtype, block_dtypes, outer=False)
        older = replace(manifest, blocks=manifest_of(all_root, dtype, DEFAULT_CHUNK_ELEMENTS).blocks)
        if has_store(older):
            return all_root, older
    return units, manifest
