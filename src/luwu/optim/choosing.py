"""The optimizer that the settings of a run name."""

from __future__ import annotations

from typing import Any

from torch import nn

from luwu.optim.decay import decay_groups
from luwu.optim.kinds import optimizer_of
from luwu.optim.optimizer import StoreOptimizer
from luwu.optim.settings import OptimizerSettings


def optimizer_class(settings: OptimizerSettings) -> type[StoreOptimizer]:
    """Return the optimizer's class, for `luwu.parallelize`."""
    return optimizer_of(settings.name)


def make_optimizer(settings: OptimizerSettings, model: nn.Module) -> StoreOptimizer:
    """Return the optimizer of a parallelized model; settings of other optimizers are ignored."""
    kind = optimizer_of(settings.name)
    decay = settings.weight_decay
    groups = decay_groups(model, decay) if settings.decays == "matrices" else model
    own = {"betas": (settings.beta1, settings.beta2), "eps": settings.eps, "momentum": settings.momentum}
    given: dict[str, Any] = {name: value for name, value in own.items() if name in kind.order}
    if settings.lr is not None:
        given["lr"] = settings.lr
    return kind(groups, weight_decay=decay, max_grad_norm=settings.max_grad_norm, **given)  # type: ignore[call-arg]
