"""Refuses micro-batches where modules pass tensors from call to call in attributes."""

from __future__ import annotations

import torch
from torch import Tensor

from luwu.core.errors import ConfigError
from luwu.worker.attributes import AttributeHistory


class RowState:
    """Checks the slices of a unit's call: a tensor that one slice puts into an attribute would reach other rows.

    After the call the attribute would also have only the last rows' tensor.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._before: dict[str, Tensor] = {}

    def check(self, history: AttributeHistory) -> None:
        """Check the tensors that the next slice's forward put into attributes.

        Raises:
            ConfigError: an earlier slice set the same attribute to other values.
        """
        for name, value in history.tensors_set().items():
            before = self._before.setdefault(name, value)
            if before is not value and (before.shape != value.shape or not torch.equal(before, value)):
                raise ConfigError(
                    f"block {self._unit}: attribute {name}: expected no tensor that its forward sets for each "
                    "micro-batch anew, found one, which micro_batch_size would take from some rows to others; leave "
                    "micro_batch_size out, or let forward take and return what it keeps"
                )
