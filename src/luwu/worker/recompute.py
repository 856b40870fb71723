"""Errors that name the unit when torch finds that a recompute did other work than its forward."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointError

from luwu.core.errors import ConfigError


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
