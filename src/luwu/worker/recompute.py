"""Errors of a unit's forward that runs again, in backward or slice by slice, and does other work than before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from luwu.core.errors import ConfigError
from luwu.worker.attributes import AttributeHistory


class NamedRecompute(torch.autograd.graph.saved_tensors_hooks):
    """The hooks of a forward that `torch.utils.checkpoint` watches, with errors that name the unit.

    The backward raises ConfigError where the recompute saves other tensors for backward than the forward did.
    """

    def __init__(self, unit: str) -> None:
        pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(True)

        def named_unpack(saved: Any) -> Any:
            try:
                return unpack(saved)
            except CheckpointError as error:
                raise ConfigError(
                    f"block {unit}: expected the recompute of its forward in backward to do what the forward did, "
                    f"found other tensors ({str(error).splitlines()[0]}); a module in it depends on state that changes "
                    "outside of its buffers and attributes, such as a global variable or a module elsewhere in the "
                    "model: keep that state in attributes of modules in the block, or use parallelize(checkpoint=False)"
                ) from error

        super().__init__(pack, named_unpack)


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
