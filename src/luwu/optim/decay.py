"""The usual rule of weight decay: matrices decay, vectors do not."""

from __future__ import annotations

from typing import Any

from torch import nn

from luwu.core.errors import ConfigError


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups for any optimizer: weight decay for matrices, none for the rest.

    Biases, the parameters of normalisations (modules with ``Norm`` in the name of their class), and every other
    parameter of fewer than two dimensions do not decay. Frozen parameters are in neither group; a group without
    parameters is left out.

    Args:
        model: parallelized or not.
        weight_decay: weight decay of the first group.

    Raises:
        ConfigError: the model has no trainable parameters.
    """
    kept = {id(parameter) for module in model.modules() for parameter in _without_decay(module)}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ConfigError(f"model: expected trainable parameters, found none in {type(model).__name__}")
    groups = [
        {"params": [parameter for parameter in trainable if id(parameter) not in kept], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trainable if id(parameter) in kept], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _without_decay(module: nn.Module) -> list[nn.Parameter]:
    """A module's own parameters that do not decay."""
    is_norm = "norm" in type(module).__name__.lower()
    return [
        parameter
        for name, parameter in module.named_parameters(recurse=False)
        if is_norm or parameter.dim() < 2 or name.startswith("bias") or name.endswith("bias")
    ]
