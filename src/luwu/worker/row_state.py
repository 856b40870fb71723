"""Refuses micro-batches where modules hand tensors from call to call in attributes."""

from __future__ import annotations

import torch
from torch import Tensor

from luwu.errors import ConfigError
from luwu.worker.attributes import AttributeHistory


class RowState:
    """Watches over the slices of a unit's call: what one puts into an attribute would reach the rows of the next.

    It would also be that of the last rows alone for whoever reads it after the call.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._before: dict[str, Tensor] = {}

    def check(self, history: AttributeHistory) -> None:
        """Look at what the forward of the next slice put into attributes.

        Raises:
            ConfigError: an attribute that a slice before set as well, to other values.
        """
        for name, value in history.tensors_set().items():
            before = self._before.setdefault(name, value)
            if before is not value and (before.shape != value.shape or not torch.equal(before, value)):
                raise ConfigError(
                    f"unit {self._unit}: attribute {name}: expected no tensor that its forward sets for each "
                    "micro-batch anew, found one, which micro_batch_size would take from some rows to others; leave "
                    "micro_batch_size out, or let forward take and return what it keeps"
                )
