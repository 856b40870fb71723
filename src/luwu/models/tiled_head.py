"""Causal language models of transformers that compute their loss a tile of logits at a time."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import update_wrapper
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from luwu.core.errors import ConfigError
from luwu.core.protocols import DRIVER_ATTRIBUTE
from luwu.models.deferred_logits import DeferredLogits
from luwu.worker.compiled import compiled_call
from luwu.worker.forward import PartForward, UnitForward
from luwu.worker.outer_forward import OuterForward

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def tile_head(model: ModuleT) -> ModuleT:
    """Let a model of transformers, called with labels, compute its loss without the logits of the whole batch.

    In place, and before `luwu.parallelize`. The loss is what the model's own code makes of its logits, up to rounding:
    a scale, a soft cap, label smoothing and a mixture's balancing loss included. ``logits`` of the output is None then;
    without labels nothing changes. With ``shift_labels`` and no ``labels`` the loss is the cross entropy with targets
    that are shifted already, for any such model.

    Where the head is no plain ``torch.nn.Linear``, or the model does something else to its logits, they are computed
    whole, as they would be without this, and a warning says why.

    Args:
        model: with ``get_output_embeddings()``, such as a causal language model of transformers.

    Returns:
        The same model.

    Raises:
        ConfigError: it has no head, or is parallelized already.
    """
    tiled_forward(model)
    return model


def tiled_forward(model: nn.Module) -> TiledForward:
    """Do what `tile_head` does, and return what stands in front of the model's forward then."""
    if hasattr(model, DRIVER_ATTRIBUTE):
        raise ConfigError("model: expected one that is not parallelized, found one that is; call luwu.tile_head before")
    forward = model.__dict__.get("forward")
    if not isinstance(forward, TiledForward):
        forward = TiledForward(model)
        object.__setattr__(model, "forward", forward)
    return forward


class TiledForward:
    """The model's forward, whose head puts its work off while there are labels.

    Attributes:
        tiled: True if the last loss was computed in tiles; False while there was none.
    """

    def __init__(self, model: nn.Module) -> None:
        if _head_of(model) is None:
            raise ConfigError(
                f"model: expected one with a language model's head, as get_output_embeddings() of transformers gives "
                f"it, found {type(model).__name__} without"
            )
        self.tiled = False
        self._model = model
        self._warned = False
        self._original: Callable[..., Any] = model.forward
        self._signature = inspect.signature(model.forward)
        update_wrapper(cast(Callable[..., Any], self), model.forward, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        given = {**self._signature.bind_partial(*args).arguments, **kwargs}
        if given.get("labels") is not None:
            with self._deferring():
                return _settled(self._original(*args, **kwargs))
        if given.get("shift_labels") is not None:
            targets = kwargs.pop("shift_labels")
            with self._deferring():
                output = self._original(*args, **kwargs, return_dict=True)
                loss = functional.cross_entropy(output.logits.float().flatten(0, -2), targets.flatten())
                return _settled(replace(output, loss=loss))
        return self._original(*args, **kwargs)

    @contextmanager
    def _deferring(self) -> Iterator[None]:
        """Context manager around a forward that makes a loss: the head gives `DeferredLogits`."""
        head = cast(nn.Linear, _head_of(self._model))
        why_not = _why_not(head)
        reason = why_not or "its forward does not call the head"
        before = head.__dict__.get("forward")

        def note(name: str) -> None:
            nonlocal reason
            reason = f"its code uses all of them for {name}"

        def defer(hidden: Tensor) -> Tensor:
            nonlocal reason
            if torch.is_autocast_enabled(hidden.device.type) or hidden.dtype != head.weight.dtype:
                reason = f"autocast is on, or its head does not have the dtype of its input, {hidden.dtype}"
                # The wrapper in front of it converts its input, where blocks have several dtypes.
                return functional.linear(hidden, head.weight, head.bias) if before is None else before(hidden)
            reason = ""
            return DeferredLogits(hidden, head.weight, head.bias, note)

        if why_not is None:
            object.__setattr__(head, "forward", defer)
        try:
            yield
        finally:
            if before is not None:
                object.__setattr__(head, "forward", before)
            else:
                head.__dict__.pop("forward", None)
        self.tiled = not reason
        if reason and not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self._model).__name__} computes the logits of the whole batch at once, because {reason}: the "
                "loss is right, and takes their memory",
                stacklevel=3,
            )


def _head_of(model: nn.Module) -> nn.Module | None:
    find = getattr(model, "get_output_embeddings", None)
    return find() if callable(find) else None


def _why_not(head: nn.Module) -> str | None:
    """Say why a head's work cannot be put off; None: it can."""
    if type(head) is not nn.Linear:
        return f"its head is a {type(head).__module__}.{type(head).__qualname__}, expected torch.nn.Linear"
    if compiled_call(head) is not None:
        return "its head is compiled; compile blocks alone"
    forward = head.__dict__.get("forward")
    if isinstance(forward, UnitForward):
        return "its head is a block of its own; leave it out of `blocks`"
    if forward is not None and not isinstance(forward, (PartForward, OuterForward)):
        return "the forward of its head has been replaced"
    return None


def _settled(output: Any) -> Any:
    """Return a model's output without logits that nobody has computed."""
    if isinstance(output, tuple):
        return tuple(each for each in output if not isinstance(each, DeferredLogits))
    logits = getattr(output, "logits", None)
    return replace(output, logits=logits.whole) if isinstance(logits, DeferredLogits) else output
