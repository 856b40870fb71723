"""Refuses to save a model whose values are elsewhere without them, and to load into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, cast

from torch import nn

from luwu.core.errors import ConfigError
from luwu.worker.flatten import Unit
from luwu.worker.placeholders import put_placeholders, refuse_placeholders
from luwu.worker.uncopyable import Uncopyable


class SaveGiven(Uncopyable):
    """A model's ``save_pretrained`` that requires the values to be given."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        update_wrapper(cast(Callable[..., Any], self), original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Save the given values.

        Raises:
            ConfigError: no ``state_dict`` was given.
        """
        if kwargs.get("state_dict") is None:
            raise ConfigError(
                "save_pretrained of a parallelized model: expected state_dict=, found none; its parameters are in the "
                "store: pass state_dict=luwu.full_state_dict(model), or only the trainable ones with "
                "luwu.full_state_dict(model, trainable_only=True) for a peft model"
            )
        return self._original(*args, **kwargs)


def guard_saving(model: nn.Module) -> None:
    """Let ``model.save_pretrained``, if it has one, save only what it is given."""
    save = getattr(model, "save_pretrained", None)
    if callable(save):
        object.__setattr__(model, "save_pretrained", SaveGiven(save))


def guard_state_dict(model: nn.Module, units: list[Unit]) -> None:
    """Make ``model.state_dict()`` fail, and the ``state_dict()`` of a part tell names and shapes, but no values.

    Libraries that look for names ask for a part's: peft does so when it is given values to save.
    """
    for module in _modules_with_parameters(units):
        module.register_state_dict_post_hook(put_placeholders)
    model.register_state_dict_post_hook(refuse_placeholders)


def guard_loading(units: list[Unit]) -> None:
    """Let ``load_state_dict``, of the model or a part of it, refuse values of parameters; buffers may be loaded."""
    for module in _modules_with_parameters(units):
        module.register_load_state_dict_pre_hook(_refuse_values)


def _modules_with_parameters(units: list[Unit]) -> list[nn.Module]:
    slots = [slot for unit in units for block in unit.blocks for slot in block.slots]
    return list({id(module): module for slot in slots for module, _ in slot.places}.values())


def _refuse_values(module: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    for name in module._parameters:
        if prefix + name in state:
            raise ConfigError(
                f"load_state_dict of a parallelized model: parameter {prefix}{name}: its values belong to the store, "
                "which has its own; load them before parallelize with a fresh store, or give parallelize a checkpoint "
                "with weights="
            )
