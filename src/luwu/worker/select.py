"""Selection of the modules that become units: by class, by name pattern, or the model's repeated layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from torch import nn

from luwu.core.errors import ConfigError
from luwu.worker.compiled import inside_compiled

Blocks = Iterable["type[nn.Module] | str"] | None
"""Module classes and patterns of module names (``h.*``), or None to find the repeated layers."""

NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Containers whose modules are called one by one."""

_NOT_A_LAYER = (nn.Sequential, *NEVER_CALLED)

_WORTH_A_UNIT = 10
"""A repeated class is cut into units of its own if it has this fraction of the largest one's parameters."""


def select_modules(model: nn.Module, blocks: Blocks) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of each unit but the root, in module order.

    Where matches are nested, the outermost is the unit. A match without parameters is left out. With None, the classes
    whose instances repeat in a ModuleList or Sequential and hold most of the parameters are taken; a model without any
    is all root.

    Raises:
        ConfigError: a class or pattern matches nothing, or only the model itself.
    """
    if blocks is None:
        wanted: list[type[nn.Module] | str] = list(_repeated_classes(model))
    else:
        if isinstance(blocks, (str, type)):
            raise ConfigError(
                f"blocks: expected a list of classes or name patterns, found {blocks!r}; put it in a list"
            )
        wanted = list(blocks)
    for entry in wanted:
        _require_match(model, entry)
    selected: list[tuple[str, nn.Module]] = []
    _collect(model, "", wanted, selected, set())
    return selected


def modules_outside(model: nn.Module, units: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Return each (name, module) that can be called, has parameters and is not in a unit, except the model itself."""
    seen = {id(model), *map(id, units)}

    def visit(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
        for name, child in module.named_children():
            if id(child) not in seen:
                seen.add(id(child))
                if not isinstance(child, NEVER_CALLED) and has_parameters(child):
                    yield prefix + name, child
                yield from visit(child, f"{prefix}{name}.")

    return visit(model, "")


def has_parameters(module: nn.Module) -> bool:
    """Return True if the module, or one inside it, has parameters."""
    return any(True for _ in module.parameters())


def matches(name: str, module: nn.Module, entry: type[nn.Module] | str) -> bool:
    """Return True if a class or name pattern means this module; containers that nobody calls are never meant."""
    if isinstance(module, NEVER_CALLED):
        return False
    return fnmatchcase(name, entry) if isinstance(entry, str) else isinstance(inside_compiled(module), entry)


def _collect(
    module: nn.Module,
    prefix: str,
    wanted: list[type[nn.Module] | str],
    selected: list[tuple[str, nn.Module]],
    seen: set[int],
) -> None:
    for name, child in module.named_children():
        path = prefix + name
        if any(matches(path, child, entry) for entry in wanted):
            if id(child) not in seen and has_parameters(child):
                seen.add(id(child))
                selected.append((path, child))
        else:
            _collect(child, path + ".", wanted, selected, seen)


def _require_match(model: nn.Module, entry: type[nn.Module] | str) -> None:
    if not isinstance(entry, str) and not (isinstance(entry, type) and issubclass(entry, nn.Module)):
        raise ConfigError(f"blocks: expected a torch.nn.Module class or a name pattern, found {entry!r}")
    inner = [(name, module) for name, module in model.named_modules() if name]
    if any(matches(name, module, entry) for name, module in inner):
        return
    if isinstance(entry, str):
        names = ", ".join(name for name, _ in inner[:20]) + (", ..." if len(inner) > 20 else "")
        raise ConfigError(f"blocks: the pattern {entry!r} matches no module; the model has: {names or 'no submodules'}")
    classes = ", ".join(sorted({type(module).__name__ for _, module in inner}))
    raise ConfigError(f"blocks: the model has no {entry.__name__} inside; it has: {classes or 'no submodules'}")


def _repeated_classes(model: nn.Module) -> list[type[nn.Module]]:
    """Find the classes that make up the model's depth.

    The first is the one with the most parameters among those with two or more instances directly inside containers.
    Others are those beside it in a ModuleList, as in a model that mixes kinds of layers, and repeated ones with at
    least a tenth of its parameters, as the decoder's layers beside the encoder's.
    """
    counts: dict[type[nn.Module], int] = {}
    sizes: dict[type[nn.Module], int] = {}
    beside: dict[type[nn.Module], set[type[nn.Module]]] = {}
    for container in model.modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        children = [child for child in container if child is not None]  # a ModuleList may hold None
        members = [(type(child), _size(child)) for child in children if not isinstance(child, _NOT_A_LAYER)]
        members = [(kind, size) for kind, size in members if size]
        for kind, size in members:
            counts[kind] = counts.get(kind, 0) + 1
            sizes[kind] = sizes.get(kind, 0) + size
            if isinstance(container, nn.ModuleList):
                beside.setdefault(kind, set()).update(other for other, _ in members)
    repeated = [kind for kind, count in counts.items() if count >= 2]
    if not repeated:
        return []
    largest = max(repeated, key=lambda kind: sizes[kind])
    others = beside.get(largest, set()) | {kind for kind in repeated if sizes[kind] >= sizes[largest] / _WORTH_A_UNIT}
    return [largest, *(kind for kind in sizes if kind in others - {largest})]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
