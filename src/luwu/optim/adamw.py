"""AdamW."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luwu.optim.optimizer import ParameterGroups, StoreOptimizer


class AdamW(StoreOptimizer):
    """AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101) of a parallelized model, with torch's defaults.

    See `StoreOptimizer` for what a step is. The store keeps two float32 states of each parameter.

    Args:
        params: a parallelized model, or parameter groups as torch takes them, covering its trainable parameters.
        lr: learning rate.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled weight decay.
        max_grad_norm: largest global norm of the gradient, see `StoreOptimizer`; None: no clipping.
        max_skipped: number of steps rolled back in a row that raises NonFiniteError.

    Raises:
        ConfigError: see `StoreOptimizer`.
    """

    kind = "adamw"
    order = ("lr", "betas", "eps", "weight_decay")
    states = ("exp_avg", "exp_avg_sq")
    same_states = torch.optim.AdamW

    def __init__(
        self,
        params: nn.Module | ParameterGroups,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        max_grad_norm: float | None = None,
        *,
        max_skipped: int = 10,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, max_grad_norm=max_grad_norm, max_skipped=max_skipped)


class AdamW8bit(AdamW):
    """`AdamW` whose store keeps both states in 8 bits, by blocks of 256 (Dettmers et al., 2022, arXiv:2110.02861).

    For bfloat16 parameters the store keeps 4 bytes of states instead of 12 for each, for float32 ones 2 instead of 8,
    and moves as many less in a step: docs/optimizers.md says what the codes are. Arguments and errors are `AdamW`'s.
    """

    kind = "adamw8bit"
