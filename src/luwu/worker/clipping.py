"""Warns users who clip gradients with torch that there are no gradients to clip."""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from luwu.worker.flatten import Unit

if TYPE_CHECKING:
    from types import FrameType

_CLIPPING = "torch.nn.utils.clip_grad"
_WARNED_ATTRIBUTE = "_luwu_clipping_warned"

_WHY = (
    "torch.nn.utils.{name} of a parallelized model: it finds no gradients, because they leave for the server during "
    "backward, so it clips nothing{returns}; take it out of the loop, and clip with the optimizer: "
    "luwu.AdamW(model, max_grad_norm=1.0), whose last_grad_norm tells the norm"
)


_grad: Any = vars(torch._C.TensorBase)["grad"]


class StoredParameter(nn.Parameter):
    """A trainable parameter of a parallelized model: like torch's own, but reading ``grad`` in torch's clipping warns.

    torch's functions give no other sign: they read ``grad`` of every parameter, and skip a parameter where it is None
    without a warning.
    """

    @property
    def grad(self) -> Tensor | None:
        """The gradient: None, except for a moment in backward."""
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__") == _CLIPPING:
            _warn_once(self, caller)
        found: Tensor | None = _grad.__get__(self)
        return found

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        _grad.__set__(self, gradient)

    @grad.deleter
    def grad(self) -> None:
        _grad.__delete__(self)


def watch_clipping(units: list[Unit]) -> None:
    """Warn, once for the model, when a function of torch is about to clip the gradients of its parameters."""
    warned: list[bool] = []
    for unit in units:
        for slot in unit.trainable.slots if unit.trainable is not None else ():
            if type(slot.parameter) is nn.Parameter:
                slot.parameter.__class__ = StoredParameter
                setattr(slot.parameter, _WARNED_ATTRIBUTE, warned)


def _warn_once(parameter: StoredParameter, caller: FrameType) -> None:
    warned: list[bool] = getattr(parameter, _WARNED_ATTRIBUTE)
    if warned:
        return
    level, frame = 3, cast("FrameType | None", caller)  # 1 is this function, 2 the property
    name = "clip_grad_norm_"
    while frame is not None and frame.f_globals.get("__name__") == _CLIPPING:
        if frame.f_code.co_name == "clip_grad_norm_" and frame.f_locals.get("max_norm") == math.inf:
            return  # only measures the norm, as the Trainer of transformers does for its log
        if frame.f_code.co_name == "clip_grad_value_":
            name = frame.f_code.co_name
        level, frame = level + 1, frame.f_back
    warned.append(True)
    returns = " and returns 0" if name == "clip_grad_norm_" else ""
    warnings.warn(_WHY.format(name=name, returns=returns), stacklevel=level)
