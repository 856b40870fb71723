"""Parameter groups of an optimizer, and the same groups on the server."""

from __future__ import annotations

from typing import Any

from torch import nn

from luwu.core.errors import ConfigError
from luwu.core.protocols import DRIVER_ATTRIBUTE, StepDriver, TrainablePart


def driver_of(model: nn.Module) -> StepDriver:
    """Return what drives a parallelized model.

    Raises:
        ConfigError: the model is not parallelized.
    """
    driver: StepDriver | None = getattr(model, DRIVER_ATTRIBUTE, None)
    if driver is None:
        raise ConfigError(
            f"model: expected a parallelized one, found {type(model).__name__}; call luwu.parallelize first"
        )
    return driver


def driver_of_groups(groups: list[dict[str, Any]]) -> StepDriver:
    """Find the one model whose parameters these are; frozen ones do not count.

    Raises:
        ConfigError: a trainable parameter that is in no parallelized model, or parameters of several models.
    """
    found: dict[int, StepDriver] = {}
    for index, group in enumerate(groups):
        for position, parameter in enumerate(group["params"]):
            if not parameter.requires_grad:
                continue
            driver = getattr(parameter, DRIVER_ATTRIBUTE, None)
            if driver is None:
                raise ConfigError(
                    f"parameter {position} of group {index}: expected one of a parallelized model, found one of shape "
                    f"{list(parameter.shape)} that is not; make the optimizer after luwu.parallelize"
                )
            found[id(driver)] = driver
    if len(found) != 1:
        raise ConfigError(f"params: expected trainable parameters of one parallelized model, found {len(found)} models")
    return next(iter(found.values()))


def segments_of(driver: StepDriver, groups: list[dict[str, Any]]) -> dict[int, list[tuple[int, int]]]:
    """Map each trainable block to ascending (end_element, group); padding goes with the parameter before it.

    Raises:
        ConfigError: a trainable parameter is in no group.
    """
    group_of = {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"]}
    segments: dict[int, list[tuple[int, int]]] = {}
    for block, parts in driver.trainable_parts().items():
        ranges: list[tuple[int, int]] = []
        for part in parts:
            group = _group_of(part, group_of)
            if ranges and ranges[-1][1] == group:
                ranges.pop()
            ranges.append((part.end_element, group))
        segments[block] = ranges
    return segments


def _group_of(part: TrainablePart, group_of: dict[int, int]) -> int:
    group = group_of.get(id(part.parameter))
    if group is None:
        raise ConfigError(
            f"parameter {part.name}: expected every trainable parameter in a group, found it in none; add it, or set "
            "its requires_grad to False before luwu.parallelize"
        )
    return group
