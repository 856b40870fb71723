"""Dynamic loss scaling, as torch.amp.GradScaler does it: Micikevicius et al., Mixed Precision Training (2018).

Small gradients vanish in float16. The loss is therefore multiplied by a scale before backward, and the server divides
gradients by it. Where one overflows, the step is rolled back and the scale halved; after many good steps in a row it is
doubled. All workers see the same ends of the same attempts, and so have the same scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from luwu.core.errors import ConfigError
from luwu.core.protocols import COMMITTED, NOT_FINITE, LossScale

_LARGEST = 2.0**126
"""Largest scale: its inverse is a normal float32."""


@dataclass(frozen=True)
class LossScaling:
    """Settings of the loss scale for float16 blocks; the defaults are those of torch.amp.GradScaler.

    Attributes:
        initial: scale of a fresh store's first step, a power of two: then dividing by it changes no bit. A store that
            was trained on goes on with its own.
        growth_interval: good steps in a row after which the scale is doubled.

    Raises:
        ConfigError: values that cannot work.
    """

    initial: float = 2.0**16
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        """Check the values."""
        if not (0.0 < self.initial <= _LARGEST and math.frexp(self.initial)[0] == 0.5):
            raise ConfigError(f"loss_scaling: initial: expected a power of two such as 65536, found {self.initial}")
        if self.growth_interval < 1:
            raise ConfigError(f"loss_scaling: growth_interval: expected at least 1, found {self.growth_interval}")


class LossScaler:
    """The scale of the attempt that is under way or comes next.

    Args:
        settings: first value and growth of the scale.
        recorded: loss scale of the store's last commit; None: no step was committed.
    """

    def __init__(self, settings: LossScaling, recorded: LossScale | None) -> None:
        self._settings = settings
        self.scale, self._good_steps = recorded or (float(settings.initial), 0)
        if recorded is not None:
            self.count(COMMITTED)

    @property
    def state(self) -> LossScale:
        """State that the server is told when an attempt begins, and records when it commits it."""
        return self.scale, self._good_steps

    def count(self, end: int) -> None:
        """Count an attempt that has ended. An attempt that a worker gave up does not count for the scale."""
        if end == NOT_FINITE:
            self.scale, self._good_steps = self.scale / 2, 0
        elif end == COMMITTED:
            self._good_steps += 1
            if self._good_steps >= self._settings.growth_interval:
                self.scale, self._good_steps = min(self.scale * 2, _LARGEST), 0


class _ScaleGradient(torch.autograd.Function):
    """Identity whose backward multiplies by the scale, and reports that before anything else of the backward."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, scale: float, scaled: Callable[[], None]) -> Tensor:
        ctx.scale, ctx.scaled = scale, scaled
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.scaled()
        return gradient * ctx.scale, None, None


def scale_gradient(loss: Tensor, scale: float, scaled: Callable[[], None]) -> Tensor:
    """Return the loss, of the same value, whose backward calls ``scaled`` and begins with ``scale`` instead of 1."""
    return _ScaleGradient.apply(loss, scale, scaled)


_OF_FORWARD: ContextVar[float] = ContextVar("luwu_loss_scale", default=1.0)


@contextmanager
def scaled_forward(scale: float) -> Iterator[None]:
    """Context manager around a forward whose loss will be scaled, for modules that compute gradients in forward."""
    token = _OF_FORWARD.set(scale)
    try:
        yield
    finally:
        _OF_FORWARD.reset(token)


def forward_scale() -> float:
    """Return the scale of the loss that this forward leads to; 1 if none is scaled."""
    return _OF_FORWARD.get()
