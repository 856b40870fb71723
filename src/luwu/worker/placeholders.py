"""Keeps placeholders of parameters in a module's ``state_dict`` from being taken for values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from luwu.core.errors import ConfigError

_REMEDY = (
    "its values are in the store, found only a placeholder of NaN here; take luwu.full_state_dict(model), which reads "
    "all values into memory (trainable_only=True: those of adapters alone), or `luwu export`, which streams them from "
    "the store; model.named_buffers() has the buffers"
)

ABOUT_THE_TENSOR = {
    *(vars(torch._C.TensorBase)[name].__get__ for name in ("shape", "dtype", "device", "layout", "requires_grad")),
    *(vars(torch._C.TensorBase)[name].__get__ for name in ("ndim", "is_meta", "is_sparse", "is_leaf", "grad_fn")),
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.element_size,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.__len__,
    Tensor.__hash__,
}
"""Calls that ask for no values; programs that only want names and shapes make them."""


class Placeholder(Tensor):
    """Stands for a parameter in a state_dict: tells its shape and dtype, and refuses to be computed with or saved.

    Raises:
        ConfigError: on any other use.
    """

    _name: str

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Refuse calls that would read values."""
        if func in ABOUT_THE_TENSOR:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise _error(next((each._name for each in args if isinstance(each, Placeholder)), "(unknown)"))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled, as torch.save does."""
        raise _error(self._name)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Show the parameter's name, shape and dtype."""
        return f"Placeholder({self._name}, {list(self.shape)}, {self.dtype})"


def put_placeholders(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Replace the module's parameters in a ``state_dict`` by placeholders, as a hook after ``state_dict``.

    With ``keep_vars=True`` the dict has the parameters themselves, which stay.
    """
    for name, parameter in module._parameters.items():
        value = state.get(prefix + name)
        if isinstance(value, Tensor) and value is not parameter:
            state[prefix + name] = placeholder = value.detach().as_subclass(Placeholder)
            placeholder._name = prefix + name


def refuse_placeholders(module: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Refuse a model's ``state_dict``, as a hook after it, before somebody opens a file for it.

    Raises:
        ConfigError: the dict has placeholders.
    """
    for name, value in state.items():
        if isinstance(value, Placeholder) and name.startswith(prefix):
            raise _error(name)


def _error(name: str) -> ConfigError:
    return ConfigError(f"state_dict of a parallelized model: parameter {name}: {_REMEDY}")
