"""First values: a model is initialised module by module, and written to the store unit by unit, never whole."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from luwu.errors import ConfigError, MemoryBudgetError
from luwu.worker.flatten import Unit
from luwu.worker.interface import Endpoint
from luwu.worker.residence import absent

Init = Callable[[nn.Module], object] | None
"""Called on each module on meta that has parameters or buffers of its own, after its ``reset_parameters()``."""

_ALIGNMENT = 64  # bytes


class Initialiser:
    """Gives modules on meta their values, the same bits whatever the units and the number of workers.

    A module's random numbers depend on ``seed`` and its name alone. torch's global generator is left as it was.
    """

    def __init__(self, model: nn.Module, init: Init, seed: int) -> None:
        self._model = model
        self._names = {id(module): name for name, module in model.named_modules()}
        self._init = init
        self._seed = seed
        # One buffer for all units: memory that is allocated and freed for each of them leaves holes that the C library
        # does not fill again, and a worker's memory would grow with the depth of the model.
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def check(self, units: list[Unit]) -> None:
        """See that every parameter on meta can be initialised.

        Raises:
            ConfigError: a module has neither ``reset_parameters()`` nor an ``init`` function; names its parameter.
        """
        for unit in units:
            for block in unit.blocks:
                for slot in block.slots:
                    if slot.parameter.is_meta and not any(self._can_reset(module) for module, _ in slot.places):
                        self._refuse(slot.name, slot.places[0][0])

    def initialise_unit(self, unit: Unit) -> None:
        """Materialise the unit's parameters on meta, on the CPU, and initialise them, inner modules first.

        They lie in memory that the next call uses again.

        Raises:
            ConfigError: elements of a parameter were not set.
        """
        fresh = [slot for block in unit.blocks for slot in block.slots if slot.parameter.is_meta]
        for slot, values in zip(fresh, self._place([slot.parameter for slot in fresh]), strict=True):
            slot.replace(nn.Parameter(values.fill_(float("nan")), requires_grad=slot.parameter.requires_grad))
        live = {id(slot.parameter) for slot in fresh}
        holders = {id(module) for slot in fresh for module, _ in slot.places}
        for module in _inner_first(self._model):
            if id(module) in holders:
                self._reset(module, live)
        for slot in fresh:
            if bool(torch.isnan(slot.parameter).any()):
                raise ConfigError(
                    f"parameter {slot.name}: expected init to set all of it, found elements left out; set them in "
                    f"reset_parameters() of {type(slot.places[0][0]).__name__} or in the init function"
                )

    def initialise_buffers(self) -> None:
        """Give buffers still on meta their values, with the same bits as `initialise_unit` gives; parameters stay.

        Raises:
            ConfigError: a module has neither ``reset_parameters()`` nor an ``init`` function; names its buffer.
        """
        for module in _inner_first(self._model):
            meta = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
            if meta and not self._can_reset(module):
                self._refuse(f"{self._names[id(module)]}.{meta[0]}".lstrip("."), module)
            if meta:
                self._reset(module, set())

    def _place(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Return room in the buffer for each, of its shape and dtype."""
        ends = list(itertools.accumulate(-(-parameter.nbytes // _ALIGNMENT) * _ALIGNMENT for parameter in parameters))
        if ends and ends[-1] > self._scratch.numel():
            self._scratch = torch.empty(ends[-1], dtype=torch.uint8)
        return [
            self._scratch[start : start + parameter.nbytes].view(parameter.dtype).view(parameter.shape)
            for start, parameter in zip([0, *ends], parameters, strict=False)
        ]

    def _reset(self, module: nn.Module, live: set[int]) -> None:
        """Reset the module and give it the buffers it lacks; only parameters in ``live`` (ids) take the new values.

        The others are stood in for, so that all draw the same random numbers whichever of them are wanted.
        """
        own = dict(module._parameters)
        for name, parameter in own.items():
            if parameter is not None and id(parameter) not in live:
                values = torch.empty_like(parameter, device="cpu", memory_format=torch.contiguous_format)
                module._parameters[name] = nn.Parameter(values, requires_grad=parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(_derived_seed(self._seed, self._names[id(module)]))
            reset = _reset_method(module)
            if reset is not None:
                reset()
            if self._init is not None:
                self._init(module)
        module._parameters.update({name: kept for name, kept in own.items() if kept is None or id(kept) not in live})

    def _can_reset(self, module: nn.Module) -> bool:
        return self._init is not None or _reset_method(module) is not None

    def _refuse(self, name: str, module: nn.Module) -> None:
        raise ConfigError(
            f"{name} is on the meta device: expected {type(module).__name__}.reset_parameters() or an init function to "
            "give it values, found neither; pass parallelize(init=...), or build the model on the CPU"
        )


def write_unit(unit: Unit, endpoint: Endpoint, arena: Tensor) -> None:
    """Send the unit's values, float32, to the server as they are in its parameters; ``arena`` is whole, as bytes.

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
        for start, end in block.gaps():
            flat[start:end].zero_()
        for slot in block.slots:
            flat[slot.offset : slot.offset + slot.numel].copy_(slot.parameter.detach().reshape(-1))
        endpoint.wait(endpoint.initialise(block.index, 0))


def drop_values(unit: Unit, dtype: torch.dtype, device: torch.device) -> None:
    """Free the memory of the unit's parameters; those on meta become parameters of ``device``."""
    for block in unit.blocks:
        for slot in block.slots:
            value = absent(slot.parameter.shape, dtype, device)
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


def _reset_method(module: nn.Module) -> Callable[[], object] | None:
    method = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return method if callable(method) else None
