"""The manifest of a model that is not parallelized: what a store for it must hold."""

from __future__ import annotations

import torch
from torch import nn

from luwu.errors import ConfigError
from luwu.store.manifest import DEFAULT_CHUNK_ELEMENTS, DEFAULT_OPTIMIZER, Manifest
from luwu.worker.dtypes import BlockDtypes, check_ties, choose_dtypes
from luwu.worker.flatten import flatten, manifest_of
from luwu.worker.select import Blocks, select_modules


def describe(
    model: nn.Module,
    blocks: Blocks = None,
    dtype: torch.dtype = torch.float32,
    optimizer: str = DEFAULT_OPTIMIZER,
    block_dtypes: BlockDtypes | None = None,
) -> Manifest:
    """The manifest with which `luwu.parallelize` of the same model, blocks, dtypes and optimizer's kind opens a store.

    Raises:
        ConfigError: a class or pattern matches nothing, blocks cannot have these dtypes, or there are no parameters.
    """
    selected, others = choose_dtypes(model, select_modules(model, blocks), block_dtypes)
    units = flatten(model, selected, dtype, others)
    check_ties(units)
    if not any(unit.blocks for unit in units):
        raise ConfigError(f"model: expected parameters, found none in {type(model).__name__}")
    return manifest_of(units, dtype, DEFAULT_CHUNK_ELEMENTS, optimizer)
