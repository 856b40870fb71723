"""SGD with momentum."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from luwu.core.errors import ConfigError
from luwu.optim.optimizer import ParameterGroups, StoreOptimizer


class SGD(StoreOptimizer):
    """Stochastic gradient descent with momentum of a parallelized model, as torch.optim.SGD, with torch's defaults.

    See `StoreOptimizer` for what a step is. The store keeps one float32 state of each parameter, also without momentum.

    Args:
        params: a parallelized model, or parameter groups as torch takes them, covering its trainable parameters.
        lr: learning rate.
        momentum: share of the last direction that is kept.
        dampening: share of a gradient that the momentum does without, from the second step on.
        weight_decay: L2 penalty, added to the gradient.
        nesterov: look ahead along the momentum (Sutskever et al., 2013).
        max_grad_norm: largest global norm of the gradient, see `StoreOptimizer`; None: no clipping.
        max_skipped: number of steps rolled back in a row that raises NonFiniteError.

    Raises:
        ConfigError: Nesterov's momentum without momentum, or with dampening. Others: see `StoreOptimizer`.
    """

    kind = "sgd"
    order = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
    states = ("momentum_buffer",)

    def __init__(
        self,
        params: nn.Module | ParameterGroups,
        lr: float | Tensor = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        max_grad_norm: float | None = None,
        *,
        max_skipped: int = 10,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults, max_grad_norm=max_grad_norm, max_skipped=max_skipped)

    def check_group(self, group: dict[str, Any], where: str) -> None:
        """Refuse settings that cannot work."""
        super().check_group(group, where)
        if group["nesterov"] and (group["momentum"] <= 0.0 or group["dampening"] != 0.0):
            raise ConfigError(
                f"nesterov {where}: expected a momentum above 0 and no dampening, found momentum "
                f"{group['momentum']} and dampening {group['dampening']}"
            )
