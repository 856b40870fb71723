"""torch.compile and units: blocks may be compiled, before they are parallelized, and nothing around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import nn

from luwu.core.errors import ConfigError
from luwu.worker.uncopyable import Uncopyable

_HOW = "compile the blocks alone, before luwu.parallelize: `for block in blocks: block.compile()`"


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """Return what ``module.compile()`` put in front of the module's forward and hooks, if it was called."""
    return module._compiled_call_impl


def is_compiled(module: nn.Module) -> bool:
    """Return True if the module was compiled: by its ``compile()``, or as the result of ``torch.compile(module)``."""
    return compiled_call(module) is not None or inside_compiled(module) is not module


def inside_compiled(module: nn.Module) -> nn.Module:
    """Return the module itself, or the one inside of what ``torch.compile(module)`` returned."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else module


def check_not_around_units(model: nn.Module, units: list[nn.Module]) -> None:
    """See that no module that holds a unit is compiled: pulls and pushes cannot be traced.

    Raises:
        ConfigError: one is.
    """
    names = {id(module): name for name, module in model.named_modules()}
    inner = {id(unit) for unit in units}
    for module in model.modules():
        holds = any(id(child) in inner for child in module.modules() if child is not module)
        if is_compiled(module) and (module is model or holds):
            raise ConfigError(
                f"{names[id(module)] or 'model'}: expected no compiled module around blocks, found one; {_HOW}"
            )


class RefuseCompile(Uncopyable):
    """Stands for ``module.compile`` of a parallelized model: compiling it would trace pulls and pushes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse."""
        raise ConfigError(f"{self._name or 'model'}.compile(): the model is parallelized already; {_HOW}")
