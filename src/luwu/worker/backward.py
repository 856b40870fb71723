"""Units in a backward: the unit that works, those that have ended, and their gradients."""

from __future__ import annotations

from torch import Tensor

from luwu.core.errors import StepOrderError
from luwu.core.trace import Kind, WorkerTrace
from luwu.worker.flatten import Block, Unit
from luwu.worker.gradients import Gradients
from luwu.worker.residence import Residence
from luwu.worker.rules import why_late


class Backward:
    """The units' work in the backward of one forward after the other.

    Attributes:
        keeping: the gradients of the backward that is running are kept here for a later one.
        gradients_seen: a parameter has got a gradient in this attempt.
        pushed: number of blocks whose push has begun in this attempt.
    """

    def __init__(
        self, units: list[Unit], residence: Residence, gradients: Gradients, workers: int, trace: WorkerTrace
    ) -> None:
        self._units = units
        self._trace = trace
        self._since = 0  # begin of the active unit's work, where it is recorded
        self._residence = residence
        self._gradients = gradients
        self._workers = workers
        self._finished: set[int] = set()
        self._cut: set[int] = set()  # units whose gradients come in parts
        self._active: Unit | None = None
        self._active_use = 0
        self.keeping = False
        self.gradients_seen = False
        self.pushed = 0

    @property
    def kept(self) -> bool:
        """True while gradients of backward passes that have ended wait for more."""
        return self._gradients.keeps

    def start_forward(self) -> None:
        """Forget the backward before."""
        self._finished.clear()
        self._cut.clear()
        self._active, self._active_use = None, 0

    def has_finished(self, unit: Unit) -> bool:
        """True once the unit's work is over."""
        return unit.index in self._finished

    def require_open(self, unit: Unit, what: str) -> None:
        """Raise StepOrderError if the unit's work is over and ``what`` comes late."""
        if unit.index in self._finished:
            raise StepOrderError(why_late(unit, what))

    def expect_part(self, unit: Unit) -> None:
        """Expect the unit's gradients one by one, from slices of its batch."""
        self._cut.add(unit.index)
        self._residence.separate_gradients(unit)

    def activate(self, unit: Unit, use: int | None = None) -> None:
        """Let a unit work, or a use of an outer unit; the unit that worked before has ended.

        An outer unit goes backward through its uses: the first use comes last.
        """
        before, last = self._active, self._active_use
        if before is not unit:
            self._end_work()
            if before is not None and (last or self._residence.is_held(before)):
                if not self._residence.is_held(before):
                    self._residence.release(before)
            elif before is not None:
                self.finish(before)
            self._active, self._active_use = unit, 0
        if use is not None:
            self._active_use = use

    def begin_work(self) -> None:
        """Note that the active unit has what it computes with."""
        if not self._since:
            self._since = self._trace.begin()

    def finish(self, unit: Unit) -> None:
        """End a unit's work: push its gradients, or keep them, and release it."""
        if unit.index in self._finished:
            return
        if self._active is unit:
            self._end_work()
        if unit.trainable is not None and self.keeping:
            self._gradients.keep(unit.trainable)
        elif unit.trainable is not None and not self._pushed_at_the_end(unit):
            self._push(unit.trainable)
        self._finished.add(unit.index)
        if self._active is unit:
            self._active = None
        self._residence.release(unit)

    def take(self, unit: Unit, slot: int, gradient: Tensor) -> None:
        """Take the gradient of a trainable parameter of the unit."""
        block = unit.trainable
        assert block is not None
        self.require_open(unit, f"a gradient of {block.slots[slot].name}")
        self.gradients_seen = True
        self._gradients.write(block, slot, gradient, part=unit.index in self._cut, to_keep=self.keeping)

    def finish_all(self) -> None:
        """End the work of all units."""
        for unit in self._in_order():
            self.finish(unit)
        for unit in self._in_order():
            if unit.trainable is not None and not self.keeping and self._pushed_at_the_end(unit):
                self._push(unit.trainable)

    def push_kept(self) -> None:
        """Push everything: no backward has done it."""
        for unit in self._in_order():
            if unit.trainable is not None:
                self._push(unit.trainable)

    def clear(self) -> None:
        """Forget the gradients that were not pushed."""
        self._gradients.clear()

    def _push(self, block: Block) -> None:
        self.pushed += 1
        begun = self._trace.begin()
        self._gradients.push(block)
        self._trace.end(Kind.PUSH, begun, block.index, block.nbytes)

    def _end_work(self) -> None:
        since, self._since = self._since, 0
        if since and self._active is not None:
            self._trace.end(Kind.BACKWARD, since, self._active.number)

    def _pushed_at_the_end(self, unit: Unit) -> bool:
        """Return True if the unit is pushed after all others: another worker may not use it, and would wait.

        So several workers push these blocks behind all others, in one order: else two could wait for each other.
        """
        return unit.outer and self._workers > 1

    def _in_order(self) -> list[Unit]:
        return [*reversed(self._units[1:]), self._units[0]]
