"""Residence of units: binds a module's parameters to pulled blocks, and pulls ahead along a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from luwu.core.trace import Kind, WorkerTrace
from luwu.worker.flatten import Block, Slot, Unit
from luwu.worker.passes import Pass
from luwu.worker.watched import unwatch, watch
from luwu.worker.window import Window, views_of


def absent(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what a parameter holds while its block is not pulled: NaN of its shape, in one element's memory."""
    with torch.inference_mode(False):
        single = torch.full((), float("nan"), dtype=dtype, device=device)
        return single.expand(shape)


class Residence:
    """Acquires and releases units; a unit acquired twice is pulled once.

    Attributes:
        acquired: number of units whose acquisition has begun in this attempt, each time that it did.
        latest: name of the last of them.
    """

    def __init__(self, units: list[Unit], window: Window, device: torch.device, trace: WorkerTrace) -> None:
        self._units = units
        self._window = window
        self._trace = trace
        self._absent: dict[int, list[Tensor]] = {
            block.index: [absent(slot.parameter.shape, block.dtype, device) for slot in block.slots]
            for unit in units
            for block in unit.blocks
        }
        self._other_dtype = torch.empty(0, dtype=torch.float64, device=device)
        self._present: set[int] = set()
        self._kept: set[int] = set()
        self._copies: dict[int, dict[int, Tensor]] = {}  # memory of each block of units held by copies
        self._ahead: int | None = None
        self._pass: Pass | None = None
        self._inner = False
        self._again: set[int] = set()  # pulled in this pass, and given back for an inner one
        self.acquired = 0
        self.latest = ""
        for unit in units:
            self._unbind(unit)

    def acquire(self, unit: Unit) -> None:
        """Pull the unit's blocks and point its parameters at them, then ask for the next unit of the pass."""
        if unit.index in self._copies or (unit.index in self._present and unit.index not in self._kept):
            return
        self.acquired += 1
        self.latest = unit.name
        self._kept.discard(unit.index)
        for index in tuple(self._kept):  # kept in vain: whoever waits for a block holds no others but the root's
            self.release(self._units[index])
        if self._ahead is not None and self._ahead != unit.index:
            self._drop_ahead()
        self._ahead = None
        if unit.index not in self._present:
            self._request(unit)
            for block in unit.blocks:
                begun = self._trace.begin()
                values = self._window.take(block)
                self._trace.end(Kind.PULL, begun, block.index, block.nbytes)
                _bind(block.slots, values.views)
            self._present.add(unit.index)
        if unit.outer:
            unwatch(unit)
        if not self._inner:
            self._again.discard(unit.index)
        if self._pass is not None:
            self._ask_ahead(self._pass.note(unit.index))

    def hold(self, unit: Unit) -> None:
        """Give an outer unit's parameters copies of their values, which stay until `release`.

        Its blocks' places in the window are free again: a worker waits for others without holding some.
        """
        if unit.index in self._copies:
            return
        self.acquire(unit)
        copies = {block.index: self._window.flat(block).clone() for block in unit.blocks}
        self._present.discard(unit.index)
        for block in unit.blocks:
            _bind(block.slots, views_of(block, copies[block.index]))
            self._window.release(block)
        self._copies[unit.index] = copies

    def release_after_forward(self, unit: Unit) -> None:
        """Release the unit, unless the pass needs the same unit next."""
        if unit.index in self._copies:
            return
        if unit.outer:
            watch(unit)
        if self._pass is not None and self._pass.upcoming() == unit.index:
            self._kept.add(unit.index)
        else:
            self.release(unit)

    def release(self, unit: Unit) -> None:
        """Take the values away from the unit's parameters and give its blocks back."""
        held = self._copies.pop(unit.index, None) is not None
        if unit.index not in self._present and not held:
            return
        self._present.discard(unit.index)
        self._kept.discard(unit.index)
        self._unbind(unit)
        if unit.outer:
            watch(unit)
        if held:
            return
        for block in unit.blocks:
            self._window.release(block)

    def release_all(self) -> None:
        """Release every unit, and what was asked for ahead."""
        self._drop_ahead()
        for unit in self._units:
            self.release(unit)
        for unit in self._units:  # a pull that was interrupted half-way
            for block in unit.blocks:
                self._window.release(block)

    def has(self, unit: Unit) -> bool:
        """Return True while the unit's parameters have their values."""
        return unit.index in self._present or unit.index in self._copies

    def is_held(self, unit: Unit) -> bool:
        """Return True if the unit's values are copies of this worker's own."""
        return unit.index in self._copies

    def is_kept(self, unit: Unit) -> bool:
        """Return True if the unit was kept after a forward because the pass needs it next."""
        return unit.index in self._kept

    def flat(self, block: Block) -> Tensor:
        """Return a block of an acquired unit, shape [elements]."""
        copied = next((copies[block.index] for copies in self._copies.values() if block.index in copies), None)
        return self._window.flat(block) if copied is None else copied

    def owner_of(self, unit: Unit, tensor: Tensor) -> Block | None:
        """Return which of the unit's blocks the tensor's memory belongs to, if any."""
        return self._window.owner_of(tensor, unit.blocks)

    def copied_out(self, unit: Unit, values: Any) -> Any:
        """Clone the tensors within ``values`` (nested containers) that share memory with the unit's blocks."""

        def copy(tensor: Tensor) -> Tensor:
            return tensor.clone() if self._window.owner_of(tensor, unit.blocks) is not None else tensor

        if isinstance(values, Tensor):
            return copy(values)
        return tree_map_only(Tensor, copy, values)

    def separate_gradients(self, unit: Unit) -> None:
        """Let gradients of results computed from here on come apart from those of earlier results.

        Else autograd would add them up in the parameter's dtype before anyone sees them. Torch makes a new accumulator
        for a parameter whose data had another dtype in between.
        """
        if unit.trainable is not None:
            for slot in unit.trainable.slots:
                values = slot.parameter.data
                slot.parameter.data = self._other_dtype
                slot.parameter.data = values

    def start_pass(self, order: Pass) -> None:
        """Pull ahead along this pass from here on."""
        order.start()
        self._pass = order
        self._again.clear()

    def finish_pass(self) -> None:
        """The pass is complete: expect the same order next time."""
        if self._pass is not None:
            self._pass.finish()
        self._pass = None
        self._drop_ahead()

    def drop_pass(self) -> None:
        """The pass was cut short: forget what was recorded of it."""
        self._pass = None
        self._drop_ahead()

    @contextmanager
    def inner_pass(self, order: Pass) -> Iterator[None]:
        """Follow another pass for a while, then leave units as they were found.

        Other workers need not follow it. Pulls of this pass, and later pulls that restore the outer pass, are marked
        as this worker's alone.
        """
        outer, inner, before = self._pass, self._inner, {*self._present, *self._copies}
        kept, ahead = set(self._kept), self._ahead
        again = set(self._again)
        self.start_pass(order)
        self._inner = True
        try:
            yield
            order.finish()
        finally:
            self._pass = outer
            self._inner = inner
            self._drop_ahead()
            for unit in self._units:
                if unit.index not in before:
                    self.release(unit)
            self._kept = kept & self._present
            if outer is not None:
                self._again = again | (kept - self._present) | ({ahead} if ahead is not None else set())

    def _ask_ahead(self, index: int | None) -> None:
        if index is None or index in self._present:
            return
        self._ahead = index
        self._request(self._units[index])

    def _request(self, unit: Unit) -> None:
        for block in unit.blocks:
            self._window.request(block, alone=self._inner or unit.index in self._again)

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            unit, self._ahead = self._units[self._ahead], None
            for block in unit.blocks:
                if unit.index not in self._present:
                    self._window.release(block)

    def _unbind(self, unit: Unit) -> None:
        for block in unit.blocks:
            _bind(block.slots, self._absent[block.index])


def _bind(slots: list[Slot], values: list[Tensor]) -> None:
    for slot, value in zip(slots, values, strict=True):
        slot.parameter.data = value
        slot.pointer = value.data_ptr()
