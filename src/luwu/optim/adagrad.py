"""Adagrad."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luwu.optim.optimizer import ParameterGroups, StoreOptimizer


class Adagrad(StoreOptimizer):
    """Adagrad (Duchi et al., 2011) of a parallelized model, as torch.optim.Adagrad, with torch's defaults.

    See `StoreOptimizer` for what a step is. The store keeps one float32 state of each parameter.

    Args:
        params: a parallelized model, or parameter groups as torch takes them, covering its trainable parameters.
        lr: learning rate.
        lr_decay: the rate of step t is ``lr / (1 + (t - 1) * lr_decay)``.
        weight_decay: L2 penalty, added to the gradient.
        initial_accumulator_value: first value of the sum of squared gradients.
        eps: added to the root of that sum.
        max_grad_norm: largest global norm of the gradient, see `StoreOptimizer`; None: no clipping.
        max_skipped: number of steps rolled back in a row that raises NonFiniteError.

    Raises:
        ConfigError: see `StoreOptimizer`.
    """

    kind = "adagrad"
    order = ("lr", "lr_decay", "weight_decay", "eps", "initial_accumulator_value")
    states = ("sum",)
    same_states = torch.optim.Adagrad

    def __init__(
        self,
        params: nn.Module | ParameterGroups,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        max_grad_norm: float | None = None,
        *,
        max_skipped: int = 10,
    ) -> None:
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
        }
        super().__init__(params, defaults, max_grad_norm=max_grad_norm, max_skipped=max_skipped)
