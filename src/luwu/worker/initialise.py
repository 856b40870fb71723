"""First values: a model is initialised module by module, and written to the store unit by unit, never whole."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from luwu.core.errors import ConfigError, MemoryBudgetError
from luwu.core.protocols import Endpoint, Weights
from luwu.worker.flatten import Slot, Unit
from luwu.worker.recipes import Recipe, Recipes, plain_name
from luwu.worker.residence import absent

Init = Callable[[nn.Module], object] | None
"""Function called on each module on meta with parameters or buffers of its own, after its own initialisation."""

_ALIGNMENT = 64  # bytes

_MARKED_INTEGERS = (torch.int32, torch.int64)
"""Dtypes whose smallest value marks elements of a buffer that nothing has set."""


class Initialiser:
    """Gives modules on meta their values, the same bits whatever the units and the number of workers.

    A module's random numbers depend on ``seed`` and its name alone. torch's global generator is left as it was. With
    ``weights``, parameters and persistent buffers take their values from there, on meta or not.
    """

    def __init__(self, model: nn.Module, init: Init, seed: int, weights: Weights | None = None) -> None:
        self._model = model
        self._names = {id(module): name for name, module in model.named_modules()}
        self._around = _modules_around(model)
        self._recipes = Recipes(model)
        self._init = init
        self._seed = seed
        self._weights = weights
        # One buffer for all units: memory that is allocated and freed for each of them leaves holes that the C library
        # does not fill again, and a worker's memory would grow with the depth of the model.
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def check(self, units: list[Unit]) -> None:
        """Check that every parameter on meta can be initialised.

        Raises:
            ConfigError: a module has nothing that gives it values; names its parameter.
        """
        for unit in units:
            for block in unit.blocks:
                for slot in block.slots:
                    drawn = slot.parameter.is_meta and not self._has_weights(slot)
                    if drawn and not any(self._can_reset(module) for module, _ in slot.places):
                        self._refuse(slot.name, slot.places[0][0])

    def initialise_unit(self, unit: Unit) -> None:
        """Give the unit's parameters their values on the CPU: from the weights, or where on meta, inner modules first.

        They lie in memory that the next call uses again.

        Raises:
            CheckpointError: the weights cannot be read.
            ConfigError: elements of a parameter were not set.
        """
        every = [slot for block in unit.blocks for slot in block.slots]
        fresh = [slot for slot in every if slot.parameter.is_meta or self._has_weights(slot)]
        for slot, values in zip(fresh, self._place([slot.parameter for slot in fresh]), strict=True):
            slot.replace(nn.Parameter(values.fill_(float("nan")), requires_grad=slot.parameter.requires_grad))
        drawn = [slot for slot in fresh if not self._has_weights(slot)]
        self._draw(drawn)
        for slot in drawn:
            if bool(torch.isnan(slot.parameter).any()):
                raise ConfigError(
                    f"parameter {slot.name}: expected init to set all of it, found elements left out; set them in "
                    f"reset_parameters() of {type(slot.places[0][0]).__name__} or in the init function"
                )
        if self._weights is not None:
            for slot in fresh:
                if self._has_weights(slot):
                    slot.parameter.data.copy_(self._weights.read(slot.name))

    def initialise_buffers(self) -> None:
        """Give buffers still on meta their values, with the same bits as `initialise_unit` gives; parameters stay.

        Raises:
            CheckpointError: the weights cannot be read.
            ConfigError: a module has nothing that gives its buffer values; names the buffer.
        """
        for module in _inner_first(self._model):
            meta = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
            if meta and not self._can_reset(module):
                self._refuse(self._name_of(module, meta[0]), module)
            if meta:
                self._reset(module, set(), self._recipes.own(module))
        if self._weights is not None:
            for name, buffer in self._model.named_buffers():
                if self._weights.has(name):
                    buffer.copy_(self._weights.read(name))

    def _draw(self, slots: list[Slot]) -> None:
        """Initialise the modules that hold these tensors, and then the modules around them, which may change them."""
        live = {id(slot.parameter) for slot in slots}
        holders = {id(module) for slot in slots for module, _ in slot.places}
        around = {id(outer) for holder in holders for outer in self._around[holder]}
        for module in _inner_first(self._model):
            if id(module) in holders:
                self._reset(module, live, self._recipes.own(module))
            elif id(module) in around:
                recipes = self._recipes.around(module)
                if recipes:
                    self._reset(module, live, recipes, call_init=False)

    def _place(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Return room in the buffer for each, of its shape and dtype."""
        ends = list(itertools.accumulate(-(-parameter.nbytes // _ALIGNMENT) * _ALIGNMENT for parameter in parameters))
        if ends and ends[-1] > self._scratch.numel():
            self._scratch = torch.empty(ends[-1], dtype=torch.uint8)
        return [
            self._scratch[start : start + parameter.nbytes].view(parameter.dtype).view(parameter.shape)
            for start, parameter in zip([0, *ends], parameters, strict=False)
        ]

    def _reset(self, module: nn.Module, live: set[int], recipes: list[Recipe], *, call_init: bool = True) -> None:
        """Reset the module and give it the buffers it lacks; only parameters in ``live`` (ids) take the new values."""
        buffers = {name: buffer for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta}
        for name, buffer in buffers.items():
            module._buffers[name] = _unset(torch.empty_like(buffer, device="cpu"))
        with _stood_in_for(module, live), torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(_derived_seed(self._seed, plain_name(self._names[id(module)])))
            for recipe in recipes:
                recipe()
            if self._init is not None and call_init:
                self._init(module)
        for name in buffers:
            if _is_unset(module._buffers[name]):
                raise ConfigError(
                    f"buffer {self._name_of(module, name)}: expected {type(module).__name__} to set all of it, found "
                    "elements left out; set it in reset_parameters() or in the init function, or build the model on "
                    "the CPU"
                )

    def _has_weights(self, slot: Slot) -> bool:
        return self._weights is not None and self._weights.has(slot.name)

    def _can_reset(self, module: nn.Module) -> bool:
        return self._init is not None or self._recipes.known(module)

    def _name_of(self, module: nn.Module, tensor: str) -> str:
        return f"{self._names[id(module)]}.{tensor}".lstrip(".")

    def _refuse(self, name: str, module: nn.Module) -> None:
        raise ConfigError(
            f"{name} is on the meta device: expected {type(module).__name__}.reset_parameters() or an init function to "
            "give it values, found neither; pass parallelize(init=...), or build the model on the CPU"
        )


def write_unit(unit: Unit, endpoint: Endpoint, arena: Tensor) -> None:
    """Send the unit's values, float32, from its parameters to the server; ``arena`` is the whole arena, as bytes.

    Raises:
        MemoryBudgetError: a block does not fit the arena.
    """
    for block in unit.blocks:
        nbytes = 4 * block.elements
        if nbytes > arena.numel():
            raise MemoryBudgetError(
                f"block {block.name}: expected an arena of at least {nbytes} bytes to initialise it, found "
                f"{arena.numel()}; raise the memory budget, or choose smaller blocks"
            )
        flat = arena[:nbytes].view(torch.float32)
        block.clear_padding(flat)
        for slot in block.slots:
            flat[slot.offset : slot.offset + slot.numel].copy_(slot.parameter.detach().reshape(-1))
        endpoint.wait(endpoint.initialise(block.index, 0))


def drop_values(unit: Unit, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Free the memory of the unit's parameters; those on meta become parameters of ``device``.

    They are of this dtype from here on, by default of their block's.
    """
    for block in unit.blocks:
        for slot in block.slots:
            value = absent(slot.parameter.shape, dtype or block.dtype, device)
            if slot.parameter.is_meta:
                slot.replace(nn.Parameter(value, requires_grad=slot.parameter.requires_grad))
            else:
                slot.parameter.data = value


def _derived_seed(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _inner_first(module: nn.Module) -> list[nn.Module]:
    """Order as constructors do: a module's own reset comes after those of the modules in it."""
    found: dict[int, nn.Module] = {}

    def visit(current: nn.Module) -> None:
        for child in current.children():
            visit(child)
        found.setdefault(id(current), current)

    visit(module)
    return list(found.values())


def _modules_around(model: nn.Module) -> dict[int, list[nn.Module]]:
    """Return by the id of each module the modules that it lies in, on the first path to it."""
    around: dict[int, list[nn.Module]] = {}

    def visit(module: nn.Module, path: list[nn.Module]) -> None:
        if id(module) not in around:
            around[id(module)] = path
            for child in module.children():
                visit(child, [*path, module])

    visit(model, [])
    return around


@contextmanager
def _stood_in_for(module: nn.Module, live: set[int]) -> Iterator[None]:
    """Context manager: parameters in and below the module that are not ``live`` are others, to be thrown away.

    The module's own have memory, so that all draw the same random numbers whichever of them are wanted. Those below it
    have none, because it may be the whole model.
    """
    kept: list[tuple[nn.Module, str, nn.Parameter]] = []
    for inner in module.modules():
        device = "cpu" if inner is module else "meta"
        for name, parameter in inner._parameters.items():
            if parameter is not None and id(parameter) not in live:
                kept.append((inner, name, parameter))
                values = torch.empty_like(parameter, device=device, memory_format=torch.contiguous_format)
                inner._parameters[name] = nn.Parameter(values, requires_grad=parameter.requires_grad)
    try:
        yield
    finally:
        for inner, name, parameter in kept:
            inner._parameters[name] = parameter


def _unset(buffer: Tensor) -> Tensor:
    """Fill a buffer with a value that no buffer is set to, if its dtype has one."""
    if buffer.is_floating_point():
        return buffer.fill_(float("nan"))
    if buffer.dtype in _MARKED_INTEGERS:
        return buffer.fill_(torch.iinfo(buffer.dtype).min)
    return buffer


def _is_unset(buffer: Tensor | None) -> bool:
    """Return True if any element is still as `_unset` left it; False for a buffer that was taken away."""
    if buffer is None:
        return False
    if buffer.is_floating_point():
        return bool(torch.isnan(buffer).any())
    return buffer.dtype in _MARKED_INTEGERS and bool((buffer == torch.iinfo(buffer.dtype).min).any())
