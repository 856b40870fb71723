"""Adam."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luwu.optim.optimizer import ParameterGroups, StoreOptimizer


class Adam(StoreOptimizer):
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980) of a parallelized model, with torch's defaults.

    See `StoreOptimizer` for what a step is. The store keeps two float32 states of each parameter.

    Args:
        params: a parallelized model, or parameter groups as torch takes them, covering its trainable parameters.
        lr: learning rate.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
        weight_decay: L2 penalty, added to the gradient; `luwu.AdamW` keeps it apart.
        max_grad_norm: largest global norm of the gradient, see `StoreOptimizer`; None: no clipping.
        max_skipped: number of steps rolled back in a row that raises NonFiniteError.

    Raises:
        ConfigError: see `StoreOptimizer`.
    """

    kind = "adam"
    order = ("lr", "betas", "eps", "weight_decay")
    states = ("exp_avg", "exp_avg_sq")
    same_states = torch.optim.Adam

    def __init__(
        self,
        params: nn.Module | ParameterGroups,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        *,
        max_skipped: int = 10,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, max_grad_norm=max_grad_norm, max_skipped=max_skipped)
