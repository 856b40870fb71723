"""Settings of a run's optimizer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from luwu.core.quantities import CountOrZero, Fraction, NotNegative, Positive, Share
from luwu.core.settings import FIXED, TOML_ONLY, Flag, Group
from luwu.optim.table import OPTIMIZERS

if TYPE_CHECKING:
    OptimizerName = str
else:  # type checkers want a Literal's values written out; pydantic takes them from the table
    OptimizerName = Literal[tuple(OPTIMIZERS)]


class OptimizerSettings(Group):
    """The optimizer, its warmup and its cosine decay (docs/optimizers.md)."""

    name: Annotated[OptimizerName, FIXED, Flag("--optimizer")] = "adamw"
    """optimizer, whose states the store keeps; adamw8bit keeps adamw's in 8 bits"""
    lr: Positive | None = None
    """highest learning rate, reached after warmup; default: by optimizer and width, see docs/optimizers.md"""
    final_lr_fraction: Annotated[Share, TOML_ONLY] = 0.1
    """learning rate at the last step as a share of the highest"""
    warmup_steps: Annotated[CountOrZero, TOML_ONLY] = 50
    """steps over which the learning rate grows from zero"""
    beta1: Annotated[Fraction, TOML_ONLY] = 0.9
    """decay of the running mean of gradients; for lion, its weight in the direction of an update"""
    beta2: Annotated[Fraction, TOML_ONLY] = 0.95
    """decay of the running mean of squared gradients; for lion, of the running mean of gradients"""
    eps: Annotated[Positive, TOML_ONLY] = 1e-8
    """added to the root that adamw, adam and adagrad divide by"""
    momentum: Annotated[Fraction, TOML_ONLY] = 0.9
    """momentum of sgd"""
    weight_decay: NotNegative = 0.1
    """weight decay, decoupled for adamw and lion, part of the gradient for the others"""
    decays: Literal["all", "matrices"] = "all"
    """parameters that decay: all, or matrices (and no biases, norms and other vectors)"""
    max_grad_norm: Positive | None = None
    """clip the gradient to this global norm, and log the norm of every step; default: no clipping"""

    def rate(self, step: int, steps: int) -> float:
        """Return the rate of the step after `step` committed ones, of `steps` in all: linear warmup, then a cosine."""
        assert self.lr is not None, "a run has chosen its rate before its first step"
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.lr * (self.final_lr_fraction + (1.0 - self.final_lr_fraction) * cosine)
