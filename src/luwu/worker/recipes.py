"""Recipes that initialise modules: torch's, and those of transformers and peft, which are not imported here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from luwu.core.errors import ConfigError

Recipe = Callable[[], object]
"""Writes values into a module's tensors in place."""

_PEFT_NAMES = re.compile(
    r"^base_model\.model(\.|$)|\.base_layer(?=\.|$)|\.original_module(?=\.|$)|\.modules_to_save\.[^.]+"
)


class Recipes:
    """Finds what initialises each module of a model.

    torch's modules have ``reset_parameters()``. Modules of a ``transformers.PreTrainedModel`` are initialised after
    that by the ``_init_weights`` of the innermost such model around them, which may also write to modules inside the
    one it is called with: so GPT-2 scales its projections. A peft layer initialises the adapters inside it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._owners: dict[int, Any] = {}
        self._settings: dict[int, Any] = {}  # settings of peft's adapters, {adapter: LoraConfig}, by module
        self._adapted: set[int] = set()
        _walk(model, None, None, self._owners, self._settings)
        for module in model.modules():
            if _is_adapter_layer(module):
                self._adapted.update(id(inner) for inner in module.modules())

    def own(self, module: nn.Module) -> list[Recipe]:
        """Return the recipes that set the module's own tensors, to be called in this order."""
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        return [*([reset] if callable(reset) else []), *self.around(module)]

    def around(self, module: nn.Module) -> list[Recipe]:
        """Return the part of `own` that may write to modules inside, and so counts even without tensors of its own."""
        recipes: list[Recipe] = []
        owner = self._owners.get(id(module))
        if owner is not None:
            recipes.append(lambda: owner._init_weights(module))
        if _is_adapter_layer(module):
            recipes.append(lambda: self._reset_adapters(module))
        return recipes

    def known(self, module: nn.Module) -> bool:
        """Return True if any recipe sets the module's own tensors."""
        return bool(self.own(module)) or id(module) in self._adapted

    def _reset_adapters(self, layer: Any) -> None:
        for adapter in layer.r:
            settings = self._settings[id(layer)].get(adapter)
            wanted = True if settings is None else settings.init_lora_weights
            if not (isinstance(wanted, bool) or wanted == "gaussian"):
                raise ConfigError(
                    f"init_lora_weights of adapter {adapter}: expected True or 'gaussian' for a model on meta, found "
                    f"{wanted!r}, which needs the values of the layer; build the model on the CPU"
                )
            layer.reset_lora_parameters(adapter, wanted)


def plain_name(name: str) -> str:
    """Return the name of a module or parameter in the model that peft wrapped, or its own name without peft."""
    return _PEFT_NAMES.sub("", name)


def is_pretrained(module: nn.Module) -> bool:
    """Return True for a ``transformers.PreTrainedModel``."""
    library = sys.modules.get("transformers.modeling_utils")  # without it there can be none
    return library is not None and isinstance(module, library.PreTrainedModel)


def adapter_parameters(model: nn.Module) -> set[int]:
    """The ids of parameters that peft put beside the model's own."""
    adapters: set[int] = set()
    layers: list[Any] = list(model.modules())
    for layer in layers:
        if _is_adapter_layer(layer):
            own = {id(parameter) for parameter in layer.get_base_layer().parameters()}
            adapters.update(id(parameter) for parameter in layer.parameters() if id(parameter) not in own)
    return adapters


def _is_adapter_layer(module: Any) -> bool:
    library = sys.modules.get("peft.tuners.lora")
    return library is not None and isinstance(module, library.LoraLayer)


def _walk(module: nn.Module, owner: Any, settings: Any, owners: dict[int, Any], of_layers: dict[int, Any]) -> None:
    if id(module) in owners:
        return
    if is_pretrained(module):
        owner = module
    found = getattr(module, "peft_config", None)
    settings = found if isinstance(found, dict) else settings
    owners[id(module)] = owner
    of_layers[id(module)] = settings or {}
    for child in module.children():
        _walk(child, owner, settings, owners, of_layers)
