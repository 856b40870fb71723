"""Which modules become units: by class, by name pattern, or the model's repeated layer."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from luwu.errors import ConfigError

Blocks = Iterable["type[nn.Module] | str"] | None
"""Module classes and patterns of module names (``h.*``), or None to find the repeated layer."""

_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def select_modules(model: nn.Module, blocks: Blocks) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of each unit but the root, in module order.

    Where matches are nested, the outermost is the unit. A match without parameters is left out. With None, the class
    whose instances repeat in a ModuleList or Sequential and hold the most parameters is taken; a model without one is
    all root.

    Raises:
        ConfigError: a class or pattern matches nothing, or only the model itself.
    """
    if blocks is None:
        repeated = _repeated_class(model)
        wanted: list[type[nn.Module] | str] = [] if repeated is None else [repeated]
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


def _matches(name: str, module: nn.Module, entry: type[nn.Module] | str) -> bool:
    if isinstance(module, _NEVER_CALLED):
        return False
    return fnmatchcase(name, entry) if isinstance(entry, str) else isinstance(module, entry)


def _collect(
    module: nn.Module,
    prefix: str,
    wanted: list[type[nn.Module] | str],
    selected: list[tuple[str, nn.Module]],
    seen: set[int],
) -> None:
    for name, child in module.named_children():
        path = prefix + name
        if any(_matches(path, child, entry) for entry in wanted):
            if id(child) not in seen and any(True for _ in child.parameters()):
                seen.add(id(child))
                selected.append((path, child))
        else:
            _collect(child, path + ".", wanted, selected, seen)


def _require_match(model: nn.Module, entry: type[nn.Module] | str) -> None:
    if not isinstance(entry, str) and not (isinstance(entry, type) and issubclass(entry, nn.Module)):
        raise ConfigError(f"blocks: expected a torch.nn.Module class or a name pattern, found {entry!r}")
    inner = [(name, module) for name, module in model.named_modules() if name]
    if any(_matches(name, module, entry) for name, module in inner):
        return
    if isinstance(entry, str):
        names = ", ".join(name for name, _ in inner[:20]) + (", ..." if len(inner) > 20 else "")
        raise ConfigError(f"blocks: the pattern {entry!r} matches no module; the model has: {names or 'no submodules'}")
    classes = ", ".join(sorted({type(module).__name__ for _, module in inner}))
    raise ConfigError(f"blocks: the model has no {entry.__name__} inside; it has: {classes or 'no submodules'}")


def _repeated_class(model: nn.Module) -> type[nn.Module] | None:
    """Find the class with the most parameters among those with two or more instances directly inside containers."""
    counts: dict[type[nn.Module], int] = {}
    sizes: dict[type[nn.Module], int] = {}
    for container in model.modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        for child in container:
            size = sum(parameter.numel() for parameter in child.parameters())
            if size and not isinstance(child, (nn.Sequential, *_NEVER_CALLED)):
                counts[type(child)] = counts.get(type(child), 0) + 1
                sizes[type(child)] = sizes.get(type(child), 0) + size
    repeated = [kind for kind, count in counts.items() if count >= 2]
    return max(repeated, key=lambda kind: sizes[kind], default=None)
