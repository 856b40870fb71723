"""Keeps ``save_pretrained`` from writing a model whose values are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, cast

from torch import nn

from luwu.errors import ConfigError
from luwu.worker.uncopyable import Uncopyable


class SaveGiven(Uncopyable):
    """A model's ``save_pretrained`` that insists on being given the values."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        update_wrapper(cast(Callable[..., Any], self), original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Save, if there is something to save.

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
