"""States of torch's random number generators, so that an attempt or a recompute can draw the same numbers again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """State of the processor's generator, and of those of some devices."""

    cpu: Tensor
    by_device: dict[torch.device, Tensor]

    @classmethod
    def now(cls, devices: Iterable[torch.device]) -> RandomState:
        """Return the states as they are, of the processor and of ``devices``."""
        return cls(
            torch.get_rng_state(),
            {device: torch.get_device_module(device).get_rng_state(device) for device in devices},
        )

    @classmethod
    def of_all_gpus(cls) -> RandomState:
        """Return the states as they are, of the processor and of every GPU once CUDA is in use."""
        count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
        return cls.now(torch.device("cuda", index) for index in range(count))

    def restore(self) -> None:
        """Put the generators back."""
        torch.set_rng_state(self.cpu)
        for device, state in self.by_device.items():
            torch.get_device_module(device).set_rng_state(state, device)
