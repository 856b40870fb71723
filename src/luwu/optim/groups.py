"""Parameter groups of an optimizer, and the same groups on the server."""

from __future__ import annotations

from typing import Any

from luwu.errors import ConfigError
from luwu.worker.flatten import Slot
from luwu.worker.runtime import RUNTIME_ATTRIBUTE, Runtime


def runtime_of_groups(groups: list[dict[str, Any]]) -> Runtime:
    """Find the one model whose parameters these are; frozen ones do not count.

    Raises:
        ConfigError: a trainable parameter that is in no parallelized model, or parameters of several models.
    """
    found: dict[int, Runtime] = {}
    for index, group in enumerate(groups):
        for position, parameter in enumerate(group["params"]):
            if not parameter.requires_grad:
                continue
            runtime = getattr(parameter, RUNTIME_ATTRIBUTE, None)
            if not isinstance(runtime, Runtime):
                raise ConfigError(
                    f"parameter {position} of group {index}: expected one of a parallelized model, found one of shape "
                    f"{list(parameter.shape)} that is not; make the optimizer after luwu.parallelize"
                )
            found[id(runtime)] = runtime
    if len(found) != 1:
        raise ConfigError(f"params: expected trainable parameters of one parallelized model, found {len(found)} models")
    return next(iter(found.values()))


def segments_of(runtime: Runtime, groups: list[dict[str, Any]]) -> dict[int, list[tuple[int, int]]]:
    """Map each trainable block to ascending (end_element, group); padding goes with the parameter before it.

    Raises:
        ConfigError: a trainable parameter is in no group.
    """
    group_of = {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"]}
    segments: dict[int, list[tuple[int, int]]] = {}
    for unit in runtime.units:
        block = unit.trainable
        if block is None:
            continue
        ends = [slot.offset for slot in block.slots[1:]] + [block.elements]
        ranges: list[tuple[int, int]] = []
        for slot, end in zip(block.slots, ends, strict=True):
            group = _group_of(slot, group_of)
            if ranges and ranges[-1][1] == group:
                ranges.pop()
            ranges.append((end, group))
        segments[block.index] = ranges
    return segments


def _group_of(slot: Slot, group_of: dict[int, int]) -> int:
    group = group_of.get(id(slot.parameter))
    if group is None:
        raise ConfigError(
            f"parameter {slot.name}: expected every trainable parameter in a group, found it in none; add it, or set "
            "its requires_grad to False before luwu.parallelize"
        )
    return group
