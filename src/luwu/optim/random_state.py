"""States of torch's random number generators, so that an attempt at a step can draw the same numbers again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """State of the processor's generator, and of each GPU's once CUDA is in use."""

    cpu: Tensor
    cuda: list[Tensor]

    @classmethod
    def now(cls) -> RandomState:
        """Return the states as they are."""
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])

    def restore(self) -> None:
        """Put the generators back."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
