"""The optimizer that the settings of a run name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

import luwu
from luwu.config import OptimizerSettings
from luwu.optim.optimizer import StoreOptimizer

Arguments = Callable[[OptimizerSettings], dict[str, Any]]


def _of_moments(settings: OptimizerSettings) -> dict[str, Any]:
    return {"betas": (settings.beta1, settings.beta2), "eps": settings.eps}


_OPTIMIZERS: dict[str, tuple[type[StoreOptimizer], Arguments]] = {
    "adamw": (luwu.AdamW, _of_moments),
    "adamw8bit": (luwu.AdamW8bit, _of_moments),
    "adam": (luwu.Adam, _of_moments),
    "sgd": (luwu.SGD, lambda settings: {"momentum": settings.momentum}),
    "lion": (luwu.Lion, lambda settings: {"betas": (settings.beta1, settings.beta2)}),
    "adagrad": (luwu.Adagrad, lambda settings: {"eps": settings.eps}),
}


def optimizer_class(settings: OptimizerSettings) -> type[StoreOptimizer]:
    """The class, for `luwu.parallelize`."""
    return _OPTIMIZERS[settings.name][0]


def make_optimizer(settings: OptimizerSettings, model: nn.Module) -> StoreOptimizer:
    """The optimizer of a parallelized model; what the settings hold for other optimizers does not count."""
    kind, arguments = _OPTIMIZERS[settings.name]
    decay = settings.weight_decay
    groups = luwu.decay_groups(model, decay) if settings.decays == "matrices" else model
    return kind(groups, lr=settings.lr, weight_decay=decay, max_grad_norm=settings.max_grad_norm, **arguments(settings))  # type: ignore[call-arg]
