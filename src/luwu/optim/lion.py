"""Lion."""

from __future__ import annotations

from torch import Tensor, nn

from luwu.optim.optimizer import ParameterGroups, StoreOptimizer


class Lion(StoreOptimizer):
    """Lion (Chen et al., 2023, arXiv:2302.06675, algorithm 2) of a parallelized model, with its authors' defaults.

    Every element moves by the learning rate, up or down: take a tenth to a third of AdamW's rate, and as many times its
    weight decay. See `StoreOptimizer` for what a step is. The store keeps one float32 state of each parameter.

    Args:
        params: a parallelized model, or parameter groups as torch takes them, covering its trainable parameters.
        lr: learning rate.
        betas: share of the momentum in the direction, and decay rate of the momentum.
        weight_decay: decoupled weight decay.
        max_grad_norm: largest global norm of the gradient, see `StoreOptimizer`; None: no clipping.
        max_skipped: number of steps rolled back in a row that raises NonFiniteError.

    Raises:
        ConfigError: see `StoreOptimizer`.
    """

    kind = "lion"
    order = ("lr", "betas", "weight_decay")
    states = ("exp_avg",)

    def __init__(
        self,
        params: nn.Module | ParameterGroups,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        *,
        max_skipped: int = 10,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, defaults, max_grad_norm=max_grad_norm, max_skipped=max_skipped)
