"""State that modules keep in attributes: the recompute of a forward starts with the state that the forward had.

The generators of random numbers that `random` and `numpy.random` have for a whole process belong to it, too.

Buffers are in `luwu.worker.buffers`.
"""

from __future__ import annotations

import operator
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from luwu.worker.buffers import has_other_values
from luwu.worker.uncopyable import Uncopyable

_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes of every module: parameters, buffers, children, hooks and the mode."""

_WITHOUT_STATE = (nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Enum, Uncopyable)
"""Types of values whose own attributes are not searched; modules inside the unit are searched in any case."""

_MOST_ENTRIES = 1000
"""Size of the largest container that is searched. Larger ones are tables, such as a vocabulary, and would take time."""

_OBJECTS_DEEP = 2
"""Depth of the search in plain objects: an object and those in it, such as a cache of layers, but no further."""

Container = dict[Any, Any] | list[Any] | deque[Any] | set[Any]
_CONTAINERS = (dict, OrderedDict, defaultdict, list, deque, set)


@dataclass
class _Found:
    """A container with its contents before a forward; the attributes of a module or an object are a container, too."""

    container: Container
    before: Container
    of_module: bool

    def changed(self, written: Mapping[int, Tensor]) -> bool:
        """Return True if the container holds other objects now, or tensors that were written in place."""
        now = _copy(self.container, of_module=self.of_module)
        same = len(now) == len(self.before)
        if isinstance(now, dict) and isinstance(self.before, dict):
            same = now.keys() == self.before.keys()
        if not same or not all(map(operator.is_, _values(now), _values(self.before))):
            return True
        return bool(written) and any(_with_others(value, written) is not value for value in _values(self.before))


@dataclass
class _Tensor:
    """A tensor with its values before a forward."""

    tensor: Tensor
    version: int
    requires_grad: bool
    values: Tensor

    def changed(self) -> bool:
        """Return True if it was written in place; torch does not count writes through ``.data``."""
        return self.tensor._version != self.version or has_other_values(self.tensor, self.values)

    def twin(self) -> Tensor:
        """Return the tensor for the recompute: the old values, and no leaf, so that it may be written in place."""
        return self.values.requires_grad_().clone() if self.requires_grad else self.values


@dataclass
class _Source:
    """An array or a generator of random numbers with its contents before a forward."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    before: Any

    def changed(self) -> bool:
        """Return True if it has other contents now."""
        return not _same(self.before, self.read())


@dataclass
class _State:
    """The state before a forward: every container, every tensor and every source once."""

    containers: list[_Found] = field(default_factory=list)
    tensors: list[_Tensor] = field(default_factory=list)
    sources: list[_Source] = field(default_factory=list)


class AttributeHistory:
    """The attributes that a forward changes in a module and in the modules inside it.

    An attribute counts as changed when it is set, removed, or a tensor that was written in place. Lists, dicts, sets,
    deques and plain objects that attributes hold are treated in the same way, and so are numpy's arrays, bytearrays and
    generators of random numbers.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changed: list[_Found] = []
        self._sources: list[_Source] = []

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Run the forward inside this context: it notes what the forward changes."""
        state = _state_of(self._module)
        yield
        written = {id(each.tensor): each.twin() for each in state.tensors if each.changed()}
        self._changed = [found for found in state.containers if found.changed(written)]
        for found in self._changed:
            _fill(found.before, _with_others_inside(found.before, written), of_module=False)
        self._sources = [source for source in state.sources if source.changed()]

    @contextmanager
    def recompute(self) -> Iterator[None]:
        """Run the recompute inside this context: attributes are as before the forward, and afterwards as now."""
        now = [_copy(found.container, of_module=found.of_module) for found in self._changed]
        contents = [source.read() for source in self._sources]
        for found in self._changed:
            _fill(found.container, found.before, of_module=found.of_module)
        for source in self._sources:
            source.write(source.before)
        try:
            yield
        finally:
            for found, values in zip(self._changed, now, strict=True):
                _fill(found.container, values, of_module=found.of_module)
            for source, content in zip(self._sources, contents, strict=True):
                source.write(content)

    def tensors_set(self) -> dict[str, Tensor]:
        """Return the tensors that the forward put into attributes of modules, by the attributes' names."""
        names = {id(vars(inner)): name for name, inner in self._module.named_modules()}
        return {
            f"{names[id(found.container)]}.{name}".lstrip("."): value
            for found in self._changed
            if found.of_module and isinstance(found.container, dict) and isinstance(found.before, dict)
            for name, value in found.container.items()
            if name not in _OF_TORCH and isinstance(value, Tensor) and value is not found.before.get(name)
        }

    def forget(self) -> None:
        """Drop the noted state; there is no recompute any more.

        The state of one step may hold the graph of that step, and with it this history: without this call each step
        would keep all steps before it.
        """
        self._changed, self._sources = [], []


def _state_of(module: nn.Module) -> _State:
    state = _State(sources=_sources_of_all())
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = []

    def note(container: Container, depth: int, *, of_module: bool = False) -> None:
        before = _copy(container, of_module=of_module)
        state.containers.append(_Found(container, before, of_module))
        waiting.extend((value, depth) for value in _values(before))

    for inner in module.modules():
        note(vars(inner), 0, of_module=True)
    while waiting:
        value, depth = waiting.pop()
        if value is None or isinstance(value, (bool, int, float, str)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            # Writes to parameters are refused, and writes to inference tensors fail where gradients are wanted.
            if not isinstance(value, nn.Parameter) and not value.is_inference():
                copy = value.detach().clone()
                state.tensors.append(_Tensor(value, value._version, value.requires_grad, copy))
        elif (source := _source_of(value)) is not None:
            state.sources.append(source)
        elif isinstance(value, tuple):
            waiting.extend((each, depth) for each in value)
        elif type(value) in _CONTAINERS:
            if len(value) <= _MOST_ENTRIES:
                note(value, depth)
        elif depth < _OBJECTS_DEEP and not isinstance(value, _WITHOUT_STATE) and hasattr(value, "__dict__"):
            note(vars(value), depth + 1)
    return state


def _sources_of_all() -> list[_Source]:
    """Return the generators of a whole process; the checkpoint repeats what torch's own has drawn."""
    legacy = np.random.get_state, np.random.set_state, np.random.get_state()  # noqa: NPY002
    return [_Source(random.getstate, random.setstate, random.getstate()), _Source(*legacy)]


def _source_of(value: Any) -> _Source | None:
    """Return the source that a value is, or None. Arrays of a file are data, and no state."""
    if isinstance(value, torch.Generator):
        return _Source(value.get_state, value.set_state, value.get_state())
    if isinstance(value, np.random.RandomState):
        return _Source(value.get_state, value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return _Source(lambda: bits.state, lambda content: setattr(bits, "state", content), bits.state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _Source(value.getstate, value.setstate, value.getstate())
    if isinstance(value, bytearray):
        return _Source(lambda: bytes(value), lambda content: value.__setitem__(slice(None), content), bytes(value))
    if isinstance(value, np.ndarray) and value.flags.writeable and not isinstance(value, np.memmap):
        return _Source(value.copy, lambda content: np.copyto(value, content), value.copy())
    return None


def _same(left: Any, right: Any) -> bool:
    """Compare the contents of sources: arrays and tensors by their values, also inside dicts and tuples."""
    if isinstance(left, Tensor):
        return torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return bool(left.shape == right.shape and left.tobytes() == right.tobytes())
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _copy(container: Container, *, of_module: bool) -> Container:
    if of_module:
        assert isinstance(container, dict)
        return {name: value for name, value in container.items() if name not in _OF_TORCH}
    return container.copy()


def _values(container: Container) -> Iterator[Any]:
    return iter(container.values() if isinstance(container, dict) else container)


def _fill(container: Container, values: Container, *, of_module: bool) -> None:
    """Put these values into the container in place."""
    if isinstance(container, dict):
        assert isinstance(values, dict)
        for key in [key for key in container if key not in values and not (of_module and key in _OF_TORCH)]:
            del container[key]
        container.update(values)
    elif isinstance(container, list):
        container[:] = values
    else:
        container.clear()
        container.extend(values) if isinstance(container, deque) else container.update(values)


def _with_others(value: Any, others: Mapping[int, Tensor]) -> Any:
    """Return the value with tensors replaced by those in `others`, which has them by id; looks into tuples, too."""
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    if not isinstance(value, tuple):
        return value
    found = [_with_others(each, others) for each in value]
    if all(other is each for other, each in zip(found, value, strict=True)):
        return value
    return type(value)._make(found) if hasattr(value, "_make") else tuple(found)


def _with_others_inside(container: Container, others: Mapping[int, Tensor]) -> Container:
    if isinstance(container, dict):
        return {key: _with_others(value, others) for key, value in container.items()}
    return [_with_others(value, others) for value in container]
