"""Places of parameters: units, their blocks, and the place of each parameter in its block.

A unit is one wrapped module, several that share a parameter, such as an embedding and the head tied to it, or the root:
all parameters inside no wrapped module. A unit's trainable parameters form one block and its frozen ones another. A
parameter with several names (tied) is stored once, and in the root when the names lie in different units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor, nn

from luwu.core.errors import ConfigError
from luwu.core.manifest import DEFAULT_OPTIMIZER, ROOT_NAME, BlockManifest, Manifest, ParameterManifest
from luwu.core.protocols import TrainablePart
from luwu.core.trace import NONE

ALIGNMENT_ELEMENTS = 32
"""Each parameter starts at a multiple of this: 128 bytes of float32, 64 of the dtypes of 16 bits."""


@dataclass(eq=False)
class Slot:
    """Place of a parameter: ``offset`` is its first element in the block, ``places`` every (module, name) holding it.

    ``aliases`` are the names it has in the model after the first.
    """

    name: str
    parameter: nn.Parameter
    places: list[tuple[nn.Module, str]]
    aliases: list[str] = field(default_factory=list)
    offset: int = 0
    version: int = 0  # torch's count of writes in place to the parameter when it was last checked
    pointer: int = 0  # to the parameter's data, where it was last put

    @property
    def numel(self) -> int:
        """Elements without padding."""
        return self.parameter.numel()

    def replace(self, parameter: nn.Parameter) -> None:
        """Put another Parameter object in every place that held the old one, keeping its attributes."""
        parameter.__dict__.update(self.parameter.__dict__)
        for module, name in self.places:
            setattr(module, name, parameter)
        self.parameter = parameter


@dataclass(eq=False)
class Block:
    """Flat parameters of one dtype, pulled and pushed as a whole. ``elements`` includes padding."""

    index: int
    name: str
    trainable: bool
    slots: list[Slot]
    elements: int
    dtype: torch.dtype = torch.float32

    @property
    def nbytes(self) -> int:
        """Bytes of its parameters, and of its gradient."""
        return self.elements * self.dtype.itemsize

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Ranges of elements (start, end) that are padding."""
        ends = [slot.offset for slot in self.slots[1:]] + [self.elements]
        for slot, end in zip(self.slots, ends, strict=True):
            if slot.offset + slot.numel < end:
                yield slot.offset + slot.numel, end

    def clear_padding(self, flat: Tensor) -> None:
        """Write zeros to the padding of values or gradients of shape [elements]."""
        for start, end in self.gaps():
            flat[start:end].zero_()

    def manifest(self, dtype: torch.dtype) -> BlockManifest:
        """Describe this block for the store of a model of this dtype."""
        parameters = tuple(
            ParameterManifest(slot.name, tuple(slot.parameter.shape), slot.offset, slot.numel, tuple(slot.aliases))
            for slot in self.slots
        )
        own = None if self.dtype is dtype else dtype_name(self.dtype)
        return BlockManifest(self.name, self.trainable, parameters, self.elements, dtype=own)


@dataclass(eq=False)
class Unit:
    """A wrapped module, or the root (``index`` 0), with its blocks: trainable first, either may be missing.

    ``trainable`` is the block that is pushed, if the unit has one. All of its blocks have one ``dtype``. An ``outer``
    unit (`luwu.worker.outer`) may be called several times, and may have ``tied`` modules besides the first.
    """

    index: int
    name: str
    module: nn.Module
    blocks: list[Block] = field(default_factory=list)
    trainable: Block | None = None
    dtype: torch.dtype = torch.float32
    outer: bool = False
    tied: list[nn.Module] = field(default_factory=list)

    @property
    def number(self) -> int:
        """Number of its first block, the trainable one where it has one; `luwu.core.trace.NONE` without blocks."""
        return self.blocks[0].index if self.blocks else NONE

    @property
    def modules(self) -> list[nn.Module]:
        """All wrapped modules of the unit."""
        return [self.module, *self.tied]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in manifests, such as ``float16``."""
    return str(dtype).removeprefix("torch.")


def flatten(
    model: nn.Module,
    modules: list[tuple[str, nn.Module]],
    dtype: torch.dtype = torch.float32,
    others: Mapping[str, torch.dtype] = MappingProxyType({}),
    outer: Sequence[list[tuple[str, nn.Module]]] = (),
) -> list[Unit]:
    """Lay out ``model`` with one unit for the root (always first) and one for each of ``modules`` (name, module).

    ``others``: the dtypes of units, by name, that have another than ``dtype``. ``outer``: the modules of each outer
    unit, which has the root's dtype; with such, units are in module order.

    Raises:
        ConfigError: a parameter is not floating point.
    """
    units = [Unit(0, ROOT_NAME, model), *_units_of(model, modules, outer)]
    for unit in units:
        unit.dtype = others.get(ROOT_NAME if unit.outer else unit.name, dtype)
    slots: dict[int, Slot] = {}
    owners: dict[int, set[int]] = {}
    unit_of_module = {id(module): unit.index for unit in units[1:] for module in unit.modules}
    for module, prefix, owner in _walk(model, "", 0, unit_of_module):
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            slot = slots.setdefault(id(parameter), Slot(prefix + name, parameter, []))
            if prefix + name not in (slot.name, *slot.aliases):
                slot.aliases.append(prefix + name)
            owners.setdefault(id(parameter), set()).add(owner)
            if not any(holder is module and key == name for holder, key in slot.places):
                slot.places.append((module, name))
    for slot in slots.values():
        if not slot.parameter.is_floating_point():
            raise ConfigError(
                f"parameter {slot.name}: expected a floating-point dtype, found {slot.parameter.dtype}; "
                "register it as a buffer, or convert it"
            )
    of_unit: list[list[Slot]] = [[] for _ in units]
    for key, slot in slots.items():
        indices = owners[key]
        of_unit[next(iter(indices)) if len(indices) == 1 else 0].append(slot)
    _number_blocks(units, of_unit)
    return units


def trainable_parts(units: Sequence[Unit]) -> dict[int, list[TrainablePart]]:
    """Return the parameters of each trainable block, in the order in which they lie there."""
    found: dict[int, list[TrainablePart]] = {}
    for unit in units:
        if (block := unit.trainable) is not None:
            ends = [slot.offset for slot in block.slots[1:]] + [block.elements]
            found[block.index] = [
                TrainablePart(slot.parameter, slot.name, end) for slot, end in zip(block.slots, ends, strict=True)
            ]
    return found


def manifest_of(
    units: list[Unit], dtype: torch.dtype, chunk_elements: int, optimizer: str = DEFAULT_OPTIMIZER
) -> Manifest:
    """Describe the layout for the store of a model of this dtype, which blocks may depart from."""
    blocks = tuple(block.manifest(dtype) for unit in units for block in unit.blocks)
    return Manifest(dtype_name(dtype), chunk_elements, blocks, optimizer)


def _units_of(
    model: nn.Module, modules: list[tuple[str, nn.Module]], outer: Sequence[list[tuple[str, nn.Module]]]
) -> list[Unit]:
    """All units but the root, numbered."""
    units = [Unit(0, name, module) for name, module in modules]
    for (name, module), *tied in outer:
        units.append(Unit(0, name, module, outer=True, tied=[other for _, other in tied]))
    if outer:
        order = {id(module): index for index, module in enumerate(model.modules())}
        units.sort(key=lambda unit: order[id(unit.module)])
    for index, unit in enumerate(units, start=1):
        unit.index = index
    return units


def _walk(
    module: nn.Module, prefix: str, owner: int, unit_of_module: dict[int, int]
) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield every path to every module, so that a module with two paths is seen under both owners."""
    if owner == 0:
        owner = unit_of_module.get(id(module), 0)
    yield module, prefix, owner
    for name, child in module.named_children():
        yield from _walk(child, f"{prefix}{name}.", owner, unit_of_module)


def _number_blocks(units: list[Unit], of_unit: list[list[Slot]]) -> None:
    index = 0
    for unit, slots in zip(units, of_unit, strict=True):
        for trainable in (True, False):
            members = [slot for slot in slots if slot.parameter.requires_grad == trainable]
            if not any(slot.numel for slot in members):
                continue
            elements = 0
            for slot in members:
                slot.offset = elements
                elements += -(-slot.numel // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
            name = unit.name if trainable else f"{unit.name} (frozen)"
            block = Block(index, name, trainable, members, elements, unit.dtype)
            unit.blocks.append(block)
            if trainable:
                unit.trainable = block
            index += 1
