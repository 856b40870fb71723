"""Which tensors of a checkpoint make up which of a model's: the same names, or as transformers converts them.

Checkpoints of transformers are often not as the model is: prefixes are left out, and a mixture's experts lie in tensors
of their own which the model keeps as one. The library's own tables say what becomes of what.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from luwu.worker.recipes import is_pretrained, plain_name

Read = Callable[[str], Tensor]


@dataclass
class Sources:
    """The tensors of a checkpoint behind one or more of the model's.

    ``by_pattern`` has their names as transformers groups them; ``converter`` is None where one tensor is taken as is.
    """

    target: str
    by_pattern: dict[str, list[str]] = field(default_factory=dict)
    converter: Any = None

    @property
    def single(self) -> str | None:
        """The one tensor that is taken as it is, if so."""
        return None if self.converter is not None else next(iter(self.by_pattern.values()))[0]

    def read(self, read: Read, model: Any) -> dict[str, Tensor]:
        """Return the model's tensors that come of these, by name; only these are in memory."""
        if self.single is not None:
            return {self.target: read(self.single)}
        converter = copy.deepcopy(self.converter)
        for pattern, names in self.by_pattern.items():
            for name in names:
                converter.add_tensor(self.target, name, pattern, read(name))
        found = converter.convert(self.target, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}


def pretrained_inside(model: nn.Module) -> Any:
    """The outermost transformers model: the model itself, or what peft wrapped; None if there is none."""
    return next((module for module in model.modules() if is_pretrained(module)), None)


def find_sources(model: nn.Module, names: Iterable[str], known: Iterable[str]) -> tuple[dict[str, Sources], list[str]]:
    """Map each of the model's tensors to its sources among ``names``.

    Args:
        model: the model, of transformers or any other.
        names: of the checkpoint's tensors.
        known: plain names of the model's tensors.

    Returns:
        Sources by the model's plain name, and the names of tensors that are none of the model's.
    """
    targets = set(known)
    pretrained = pretrained_inside(model)
    if pretrained is None:
        found = {name: Sources(name, {name: [name]}) for name in names if plain_name(name) in targets}
        return found, [name for name in names if name not in found]
    return _find_converted(pretrained, names, targets)


def _find_converted(model: Any, names: Iterable[str], targets: set[str]) -> tuple[dict[str, Sources], list[str]]:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    of_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    prefix, present = model.base_model_prefix, dict.fromkeys(targets, True)
    found: dict[str, Sources] = {}
    extra: list[str] = []
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, present)
        if target not in targets and name in targets:
            target, pattern = name, None
        if target not in targets:
            extra.append(name)
        elif pattern is None:
            found[target] = Sources(target, {name: [name]})
        else:
            converter = of_pattern[pattern]
            sources = found.setdefault(target, Sources(target, converter=converter))
            sources.by_pattern.setdefault(pattern, []).append(name)
            for other in converter.target_patterns:
                found.setdefault(target.replace(converter.target_patterns[0], other), sources)
    return found, extra
