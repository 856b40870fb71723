"""Parameters of outer units while nobody calls their unit: an operation on one brings its values first.

A module may compute with another module's parameter by name, as a head does that is an embedding's table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from luwu.worker.clipping import StoredParameter
from luwu.worker.flatten import Unit
from luwu.worker.placeholders import ABOUT_THE_TENSOR

if TYPE_CHECKING:
    from luwu.worker.runtime import Runtime

_DRIVEN_BY_ATTRIBUTE = "_luwu_driven_by"

_base: dict[str, Any] = dict(vars(torch._C.TensorBase))

_WITHOUT_VALUES = {
    *ABOUT_THE_TENSOR,
    *(_base[name].__get__ for name in ("grad", "is_cuda", "is_cpu", "_version", "_backward_hooks", "_grad_fn")),
    *(_base[name].__set__ for name in ("data", "grad", "requires_grad", "_backward_hooks")),
    _base["grad"].__delete__,
    *(torch.numel, torch.is_floating_point, torch.is_complex),
    *(Tensor.nelement, Tensor.get_device, Tensor.requires_grad_),
    *(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook),
}
"""Functions that need no values."""


def _bring_values(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Call a function of torch on parameters that nobody holds, as ``__torch_function__``."""
    kwargs = kwargs or {}
    if function not in _WITHOUT_VALUES:
        drivers = [driver_of(leaf) for leaf in tree_leaves((args, kwargs)) if is_watched(leaf)]
        if drivers and all(runtime.hold(unit) for runtime, unit in drivers):
            return function(*args, **kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


class _Watched(nn.Parameter):
    """A frozen parameter."""

    __torch_function__ = classmethod(_bring_values)


class _WatchedStored(StoredParameter):
    """A trainable parameter."""

    __torch_function__ = classmethod(_bring_values)


_BOTH = _Watched, _WatchedStored
_WATCHED: dict[type, type] = {nn.Parameter: _Watched, StoredParameter: _WatchedStored}
_PLAIN = {watched: plain for plain, watched in _WATCHED.items()}


def begin_to_watch(unit: Unit, runtime: Runtime) -> None:
    """Watch an outer unit's parameters."""
    for block in unit.blocks:
        for slot in block.slots:
            setattr(slot.parameter, _DRIVEN_BY_ATTRIBUTE, (runtime, unit))
    watch(unit)


def is_watched(tensor: Any) -> bool:
    """Return True for a parameter of an outer unit that nobody calls now; a copy of one is driven by nobody."""
    return isinstance(tensor, _BOTH) and _DRIVEN_BY_ATTRIBUTE in vars(tensor)


def driver_of(parameter: Any) -> tuple[Runtime, Unit]:
    """Return what drives a watched parameter, and its unit."""
    found: tuple[Runtime, Unit] = getattr(parameter, _DRIVEN_BY_ATTRIBUTE)
    return found


def use_by_name(parameters: Sequence[Tensor | None], compute: Callable[[], Tensor], inputs: Any) -> Tensor:
    """Call ``compute``, which needs the values of these parameters, whichever units they belong to."""
    for parameter in parameters:
        if is_watched(parameter):
            from luwu.worker.outer_forward import use_outer  # brings the native part: plain torch does without

            runtime, unit = driver_of(parameter)
            result: Tensor = use_outer(runtime, unit, lambda: use_by_name(parameters, compute, inputs), inputs)
            return result
    return compute()


def watch(unit: Unit) -> None:
    """Watch its parameters again: the caller of the unit is done."""
    _change(unit, _WATCHED)


def unwatch(unit: Unit) -> None:
    """Make its parameters plain ones, which have their values."""
    _change(unit, _PLAIN)


def _change(unit: Unit, classes: dict[type, type]) -> None:
    for block in unit.blocks:
        for slot in block.slots:
            slot.parameter.__class__ = classes.get(type(slot.parameter), type(slot.parameter))
