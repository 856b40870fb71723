"""A model's layout: its units as `luwu.parallelize` chooses them."""

from __future__ import annotations

import torch
from torch import nn

from luwu.core.errors import ConfigError
from luwu.worker.compiled import check_not_around_units
from luwu.worker.dtypes import BlockDtypes, check_ties, choose_dtypes
from luwu.worker.flatten import Unit, flatten
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
