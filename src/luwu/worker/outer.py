"""Modules outside of the repeated ones that become units of their own: embeddings, heads, large projections.

Such an outer unit may be called any number of times in a forward, and other modules may use its parameters by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from luwu.core.manifest import LEAST_SHARE
from luwu.worker.compiled import is_compiled
from luwu.worker.select import NEVER_CALLED

Group = list[tuple[str, nn.Module]]
"""The (name, module) of each module of one outer unit: one, or several that share a parameter, as a tied head does."""


def select_outer(model: nn.Module, units: list[tuple[str, nn.Module]]) -> list[Group]:
    """Return the outer units of a model whose other units are ``units``, in module order.

    A module qualifies by the parameters that it has itself: at least a quarter as many as the largest unit. It brings
    the modules inside along. Modules of a ModuleList or ModuleDict stay in the root: a forward may choose among them.
    """
    largest = max((_count(module.parameters()) for _, module in units), default=0)
    if not largest:
        return []
    inside = {id(part) for _, module in units for part in module.modules()}
    least = largest / LEAST_SHARE
    candidates = [
        (name, module)
        for name, module in _outermost(model, "", inside, least, {id(model)})
        if _can_be_pulled(module) and not any(id(part) in inside for part in module.modules())
    ]
    holders = _holders(model)
    return [group for group in _joined_by_ties(candidates) if _count(_own(group, holders)) >= least]


def _outermost(
    module: nn.Module, prefix: str, inside: set[int], least: float, seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if id(child) in seen or id(child) in inside or isinstance(child, NEVER_CALLED) or is_compiled(child):
            continue
        seen.add(id(child))
        own = _count(parameter for parameter in child._parameters.values() if parameter is not None)
        if own >= least and not any(id(part) in inside for part in child.modules()):
            yield prefix + name, child
        else:
            yield from _outermost(child, f"{prefix}{name}.", inside, least, seen)


def _can_be_pulled(module: nn.Module) -> bool:
    """Return True if the module's parameters are plain ones, and its code, and all inside it, is Python's."""
    plain = all(type(parameter) is nn.Parameter and parameter.is_floating_point() for parameter in module.parameters())
    return plain and not any(is_compiled(part) or isinstance(part, torch.jit.ScriptModule) for part in module.modules())


def _joined_by_ties(candidates: Group) -> list[Group]:
    """Join groups that share a parameter."""
    groups: list[tuple[set[int], Group]] = []
    for name, module in candidates:
        keys = {id(parameter) for parameter in module.parameters()}
        members: Group = [(name, module)]
        for tied in [group for group in groups if group[0] & keys]:
            groups.remove(tied)
            keys |= tied[0]
            members = tied[1] + members
        groups.append((keys, members))
    order = {id(module): index for index, (_, module) in enumerate(candidates)}
    for _, members in groups:
        members.sort(key=lambda member: order[id(member[1])])
    return sorted((members for _, members in groups), key=lambda members: order[id(members[0][1])])


def _holders(model: nn.Module) -> dict[int, set[int]]:
    """Return by the id of each parameter the ids of the modules that have it."""
    found: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            found.setdefault(id(parameter), set()).add(id(module))
    return found


def _own(group: Group, holders: dict[int, set[int]]) -> Iterator[nn.Parameter]:
    """The parameters that no module outside of the group has."""
    parts = {id(part) for _, module in group for part in module.modules()}
    unique = {id(parameter): parameter for _, module in group for parameter in module.parameters()}
    return (parameter for key, parameter in unique.items() if holders[key] <= parts)


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
