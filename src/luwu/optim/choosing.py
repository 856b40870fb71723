"""The optimizer that the settings of a run name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from luwu.optim.decay import decay_groups
from luwu.optim.kinds import optimizer_of
from luwu.optim.optimizer import StoreOptimizer
from luwu.optim.settings import OptimizerSettings

Arguments = Callable[[OptimizerSettings], dict[str, Any]]


def _of_moments(settings: OptimizerSettings) -> dict[str, Any]:
    return {"betas": (settings.beta1, settings.beta2), "eps": settings.eps}


ARGUMENTS: dict[str, Arguments] = {
    "adamw": _of_moments,
    "adamw8bit": _of_moments,
    "adam": _of_moments,
    "sgd": lambda settings: {"momentum": settings.momentum},
    "lion": lambda settings: {"betas": (settings.beta1, settings.beta2)},
    "adagrad": lambda settings: {"eps": settings.eps},
}
"""The settings that each kind's class takes beside rate, decay and clipping."""


def optimizer_class(settings: OptimizerSettings) -> type[StoreOptimizer]:
    """Return the optimizer's class, for `luwu.parallelize`."""
    return optimizer_of(settings.name)


def make_optimizer(settings: OptimizerSettings, model: nn.Module) -> StoreOptimizer:
    """Return the optimizer of a parallelized model; settings of other optimizers are ignored."""
    kind, arguments = optimizer_of(settings.name), ARGUMENTS[settings.name]
    decay = settings.weight_decay
    groups = decay_groups(model, decay) if settings.decays == "matrices" else model
    given = arguments(settings) | ({} if settings.lr is None else {"lr": settings.lr})
    return kind(groups, weight_decay=decay, max_grad_norm=settings.max_grad_norm, **given)  # type: ignore[call-arg]
