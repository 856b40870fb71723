"""Logits that are computed only if they are needed; the head returns them while only a loss is asked for.

They stand for ``linear(hidden, weight, bias)`` and for what a model does to it on the way to its loss: convert, scale,
cap, reshape. Cross entropy of them is computed in tiles. Whatever else is done to them computes them all, so the result
is the same, whether a model's code was foreseen here or not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from luwu.worker.tiled_loss import Transform, tiled_cross_entropy

_KNOWN_BEFORE: set[Any] = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.is_floating_point,
}
_RESHAPING: set[Any] = {Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.contiguous, torch.reshape, torch.flatten}
_ONE_BY_ONE: set[Any] = {
    *(Tensor.float, Tensor.to),
    *(Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul),
    *(Tensor.div, Tensor.__truediv__, torch.div),
    *(Tensor.tanh, torch.tanh),
}
"""Operations whose every result follows from one logit, a dtype and numbers."""


class DeferredLogits(Tensor):
    """A tensor of the logits' shape and dtype, without memory of its own.

    Args:
        hidden: input of the head, [..., width].
        weight: weight of the head, [classes, width].
        bias: bias of the head, [classes].
        on_whole: called with the name of the operation that needs all logits.
        transforms: functions applied to the logits, one after the other; each row for itself.
        dtype: dtype of their result; None: that of ``hidden``.
    """

    _head: tuple[Tensor, Tensor | None]
    _hidden: Tensor
    _on_whole: Callable[[str], None]
    _transforms: tuple[Transform, ...]
    _viewed: DeferredLogits | None  # the logits that it is a view of
    _whole: Tensor | None

    def __new__(
        cls,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        on_whole: Callable[[str], None],
        transforms: tuple[Transform, ...] = (),
        dtype: torch.dtype | None = None,
    ) -> DeferredLogits:
        """Make it."""
        made: DeferredLogits = Tensor._make_wrapper_subclass(
            cls, (*hidden.shape[:-1], weight.size(0)), dtype=dtype or hidden.dtype, device=hidden.device
        )
        made._hidden = hidden
        made._head = weight, bias
        made._on_whole = on_whole
        made._transforms = transforms
        made._viewed = None
        made._whole = None
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what torch was asked for, without the logits if that is possible."""
        kwargs = kwargs or {}
        if function in _KNOWN_BEFORE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if args and isinstance(args[0], DeferredLogits) and args[0].whole is None:
            found = args[0]._deferred(function, args[1:], kwargs)
            if found is not None:
                return found
        args, kwargs = tree_map_only(DeferredLogits, lambda logits: logits._compute(function), (args, kwargs))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse what has come around `__torch_function__`: autograd would not know of it."""
        raise TypeError(f"{function}: expected a tensor with values, found logits that are deferred")

    @property
    def whole(self) -> Tensor | None:
        """All logits, if something has needed them."""
        if self._whole is None and self._viewed is not None and self._viewed.whole is not None:
            self._whole = self._viewed.whole.view(self.shape)
        return self._whole

    def _deferred(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return what the function makes of these logits; None: it needs them all."""
        if function in _RESHAPING:
            return self._reshaped(function, args, kwargs)
        if function in _ONE_BY_ONE:
            return self._transformed(function, args, kwargs)
        if function is functional.cross_entropy:
            return self._cross_entropy(*args, **kwargs)
        return None

    def _reshaped(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        now = torch.empty(self.shape, dtype=self.dtype, device="meta")
        then = function(now, *args, **kwargs)
        if then is now:
            return self
        if then.shape[-1:] != self.shape[-1:] or then.dtype != self.dtype:
            return None
        hidden = self._hidden.reshape(*then.shape[:-1], self._hidden.size(-1))
        view = DeferredLogits(hidden, *self._head, self._on_whole, self._transforms, self.dtype)
        view._viewed = self
        return view

    def _transformed(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        if not all(isinstance(each, (int, float, torch.dtype)) for each in (*args, *kwargs.values())):
            return None

        def transform(logits: Tensor) -> Tensor:
            result: Tensor = function(logits, *args, **kwargs)
            return result

        now = torch.empty(0, dtype=self.dtype)
        then = transform(now)
        if then is now:  # such as float() of float32
            return self
        return DeferredLogits(self._hidden, *self._head, self._on_whole, (*self._transforms, transform), then.dtype)

    def _cross_entropy(
        self,
        targets: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor | None:
        """Take the arguments of torch's."""
        of_classes = self.dim() == 2 and targets.dim() == 1 and targets.dtype == torch.int64
        if not of_classes or any(each is not None for each in (weight, size_average, reduce)):
            return None
        kind: Literal["mean", "sum"]
        if reduction == "mean":
            kind = "mean"
        elif reduction == "sum":
            kind = "sum"
        else:
            return None
        loss = tiled_cross_entropy(
            self._hidden,
            self._head[0],
            targets,
            self._head[1],
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=kind,
            transform=self._transform if self._transforms else None,
        )
        return loss.to(self.dtype)

    def _transform(self, logits: Tensor) -> Tensor:
        return reduce(lambda found, transform: transform(found), self._transforms, logits)

    def _compute(self, function: Any) -> Tensor:
        """Compute all logits, once for them and all views of them, so that what is written to them stays."""
        if self._viewed is not None:
            self._viewed._compute(function)
        elif self._whole is None:
            self._on_whole(_name(function))
            self._whole = self._transform(functional.linear(self._hidden, *self._head))
        assert self.whole is not None
        return self.whole


def _name(function: Any) -> str:
    """Return the name that a user would look for: of an operation, or of an attribute that was read."""
    attribute = getattr(function, "__self__", None) if getattr(function, "__name__", "") == "__get__" else None
    return str(getattr(attribute or function, "__name__", function))
