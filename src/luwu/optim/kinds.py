"""The optimizers by kind, found in the classes themselves, so that no list of them has to be kept."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import torch

import luwu.optim
from luwu.core.errors import ConfigError
from luwu.optim.optimizer import StoreOptimizer


def optimizer_classes() -> dict[str, type[StoreOptimizer]]:
    """The class of each kind: the subclasses of `StoreOptimizer` that name a kind of their own."""
    for module in pkgutil.iter_modules(luwu.optim.__path__):
        import_module(f"{luwu.optim.__name__}.{module.name}")
    return {kind.kind: kind for kind in _subclasses(StoreOptimizer) if "kind" in vars(kind)}


def optimizer_of(kind: str) -> type[StoreOptimizer]:
    """Return the optimizer class of a kind.

    Raises:
        ConfigError: no optimizer has this kind.
    """
    classes = optimizer_classes()
    if kind not in classes:
        raise ConfigError(f"optimizer: expected one of {', '.join(sorted(classes))}, found {kind!r}")
    return classes[kind]


def torch_optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Return by kind torch's own optimizers with the same states and a step for each parameter."""
    return {kind: each.same_states for kind, each in optimizer_classes().items() if each.same_states is not None}


def _subclasses(kind: type[StoreOptimizer]) -> Iterator[type[StoreOptimizer]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)
