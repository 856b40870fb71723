"""A model on a processor that is slower than it is: each block takes a multiple of its time, forward and backward."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from kit.model import LossModel


class SlowClock:
    """Makes the work of this thread take ``factor`` times as long, by rests after each part of it."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._worked = time.thread_time()

    def rest(self) -> None:
        """Rest for the work since the last rest."""
        time.sleep((self._factor - 1) * (time.thread_time() - self._worked))
        self._worked = time.thread_time()


class _Rest(torch.autograd.Function):
    """Passes a tensor on, and rests there in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, clock: SlowClock) -> Tensor:
        ctx.clock = clock
        clock.rest()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.clock.rest()
        return gradients[0], None


def slow_down(model: LossModel, factor: float) -> None:
    """Slow down every block of a model, before it is wrapped; 1 changes nothing."""
    if factor == 1:
        return
    clock = SlowClock(factor)
    for block in model.gpt.blocks:

        def slowed(hidden: Tensor, forward: Any = block.forward) -> Tensor:
            return _Rest.apply(forward(hidden), clock)

        block.forward = slowed
