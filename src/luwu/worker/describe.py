"""The manifest of a model that is not parallelized, as a store for it must have it."""

from __future__ import annotations

import torch
from torch import nn

from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS, DEFAULT_OPTIMIZER, Manifest
from luwu.worker.dtypes import BlockDtypes
from luwu.worker.flatten import manifest_of
from luwu.worker.layout import lay_out
from luwu.worker.select import Blocks


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

    ``outer``: as in `luwu.worker.layout.lay_out`.

    Raises:
        ConfigError: a class or pattern matches nothing, blocks cannot have these dtypes, or there are no parameters.
    """
    units = lay_out(model, blocks, dtype, block_dtypes, outer=outer)
    return manifest_of(units, dtype, DEFAULT_CHUNK_ELEMENTS, optimizer)
