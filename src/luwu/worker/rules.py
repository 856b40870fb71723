"""Rules of units and parameters within a step, and the messages for users who break one; phases: `step_machine`."""

from __future__ import annotations

from torch import nn

from luwu.core.errors import ConfigError, StepOrderError
from luwu.worker.flatten import Slot, Unit
from luwu.worker.residence import Residence


def why_late(unit: Unit, what: str) -> str:
    """Say why work or a gradient of a unit is refused after its backward has ended."""
    return (
        f"block {unit.name}: expected all of its backward at a stretch, found {what} after it had ended; "
        "leave the block out of `blocks`"
    )


def check_parameter(slot: Slot, trainable: bool) -> None:
    """Check, before a forward, that nobody but the optimizer has changed a parameter.

    Raises:
        ConfigError: ``requires_grad`` is not ``trainable`` any more, values were written, or it was replaced.
        StepOrderError: it has a gradient.
    """
    name, parameter = slot.name, slot.parameter
    if any(module._parameters.get(key) is not parameter for module, key in slot.places):
        raise ConfigError(
            f"parameter {name}: expected the one that was there when parallelize was called, found it replaced or "
            "gone; its values belong to the store: change the model before parallelize"
        )
    if parameter.data_ptr() != slot.pointer:
        raise ConfigError(
            f"parameter {name}: expected its data as the last step left it, found other data ({parameter.dtype} of "
            f"shape {list(parameter.shape)}), as `.data = ...`, model.to(), model.half() or resize_token_embeddings() "
            "put there; it would not be trained: do that before parallelize, which takes dtype and device"
        )
    if parameter.requires_grad != trainable:
        raise ConfigError(
            f"parameter {name}: expected requires_grad={trainable} as when parallelize was called, found "
            f"{parameter.requires_grad}; set it before parallelize"
        )
    if parameter.grad is not None:
        raise StepOrderError(
            f"parameter {name}: expected no gradient before the forward, found one set from outside; gradients belong "
            "to the server: set .grad to None"
        )
    check_unwritten(slot)


def check_all_known(model: nn.Module, units: list[Unit]) -> None:
    """Check, before the first step, that the model has no parameters that parallelize did not see.

    Raises:
        ConfigError: it has.
    """
    slots = [slot for unit in units for block in unit.blocks for slot in block.slots]
    known = {id(slot.parameter) for slot in slots}
    names = {name for slot in slots for name in (slot.name, *slot.aliases)}
    for name, parameter in model.named_parameters():
        if id(parameter) not in known and name not in names and parameter.numel():
            raise ConfigError(
                f"parameter {name}: expected only those that were there when parallelize was called, found one that "
                "came later; the store does not have it: change the model, with adapters for example, before "
                "parallelize"
            )


def note_versions(units: list[Unit]) -> None:
    """Note how often each parameter has been written to, for `check_unwritten`."""
    for unit in units:
        for block in unit.blocks:
            for slot in block.slots:
                slot.version = slot.parameter._version


def check_unwritten(slot: Slot) -> None:
    """Check that nobody has written to a parameter, as far as torch counts it: writes through ``.data`` go unseen.

    Raises:
        ConfigError: somebody has.
    """
    if slot.parameter._version != slot.version:
        slot.version = slot.parameter._version
        raise ConfigError(
            f"parameter {slot.name}: expected only the optimizer to change it, found it written in place; such writes "
            "are lost, because parameters belong to the store: set values before parallelize, and do not wrap the "
            "model in DistributedDataParallel, which writes them too: LuWu connects the workers"
        )


def check_parameters(units: list[Unit]) -> None:
    """Check all parameters before a forward, see `check_parameter`."""
    for unit in units:
        for block in unit.blocks:
            for slot in block.slots:
                check_parameter(slot, block.trainable)


def check_held_unwritten(units: list[Unit], residence: Residence) -> None:
    """Check the parameters of the root and of all units that are held, see `check_unwritten`."""
    for unit in units:
        if unit.index == 0 or residence.is_held(unit):
            check_unit_unwritten(unit)


def check_unit_unwritten(unit: Unit) -> None:
    """Check all parameters of a unit, see `check_unwritten`."""
    for block in unit.blocks:
        for slot in block.slots:
            check_unwritten(slot)
