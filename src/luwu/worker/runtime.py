"""State of a worker's attempts at steps: allowed calls, and their effects.

An attempt starts at the root's forward, goes on in backward, perhaps with more of both, and ends with ``optim.step()``.
One that is cut short, by an exception or by another forward, is rolled back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from luwu.core.errors import ConfigError, StepOrderError
from luwu.core.protocols import COMMITTED, DRIVER_ATTRIBUTE, HyperParameters, Session, TrainablePart
from luwu.worker.autograd import at_end_of_backward, backward_id, saved_tensors_are_seen
from luwu.worker.flatten import Unit
from luwu.worker.gradients import Gradients
from luwu.worker.host_memory import check_room_for_sums
from luwu.worker.kept import KeptBlocks
from luwu.worker.loss_scale import LossScaler, scale_gradient, scaled_forward
from luwu.worker.micro_batches import MicroBatches
from luwu.worker.offload import Offload
from luwu.worker.passes import Pass
from luwu.worker.residence import Residence
from luwu.worker.rules import (
    ANNOUNCE,
    FINISH_FIRST,
    NOT_SCALED,
    Phase,
    check_all_known,
    check_parameter,
    check_unwritten,
    why_late,
    why_no_backward,
    why_no_call,
    why_no_part,
)
from luwu.worker.staging import Staging
from luwu.worker.uncopyable import Uncopyable
from luwu.worker.window import Window


class Runtime(Uncopyable):
    """Drives the units of one model through attempts; ``attempt`` numbers their forwards.

    ``optimizer`` is the kind whose states the store keeps; ``scaler``, where blocks are float16, has the loss's scale.
    """

    def __init__(
        self,
        units: list[Unit],
        session: Session,
        staging: Staging,
        micro_batches: MicroBatches,
        *,
        optimizer: str,
        checkpoint: bool,
        offload: Offload | None,
        kept: KeptBlocks,
        scaler: LossScaler | None = None,
    ) -> None:
        self.units = units
        self.optimizer = optimizer
        self._window = Window(staging, kept)
        self.residence = Residence(units, self._window, staging.device)
        self.micro_batches = micro_batches
        self.checkpoint = checkpoint
        self.offload = offload
        self.mixed = len({block.dtype for unit in units for block in unit.blocks}) > 1
        self.attempt = 0
        self._session = session
        self._endpoint = session.endpoint
        self._staging = staging
        self._gradients = Gradients(units, staging)
        self._phase = Phase.IDLE
        self._in_root = False
        self._in_evaluation = False
        self._called: set[int] = set()
        self._finished: set[int] = set()
        self._cut: set[int] = set()  # units whose gradients come in parts
        self._uses: dict[int, int] = {}  # of outer units in this forward
        self._active: Unit | None = None
        self._active_use = 0
        self._backward_id = -1
        self._scaler = scaler
        self._scaled_backward = -1  # the last one that began with a scaled loss
        self._accumulating = False  # asked for
        self._to_keep = False  # the backward that is running keeps its gradients here
        self._gradients_seen = False
        self._passes = Pass(), Pass()  # training, evaluation
        self._hyper_parameters: Callable[[], list[HyperParameters]] | None = None
        self._begun_with: list[HyperParameters] = []
        self._vote: int | None = None  # the commit that was asked for and not answered
        self._segments: dict[int, list[tuple[int, int]]] = {}
        self._max_grad_norm: float | None = None
        self._groups_fixed = False
        for unit in units:
            for block in unit.blocks:
                for slot in block.slots:
                    slot.version = slot.parameter._version
            if unit.trainable is not None:
                for index, slot in enumerate(unit.trainable.slots):
                    setattr(slot.parameter, DRIVER_ATTRIBUTE, self)
                    hook = partial(_hand_over_gradient, weakref.ref(self), unit.index, index)
                    slot.parameter.register_post_accumulate_grad_hook(hook)

    def bind_optimizer(
        self,
        hyper_parameters: Callable[[], list[HyperParameters]],
        segments: dict[int, list[tuple[int, int]]],
        max_grad_norm: float | None = None,
    ) -> None:
        """Take hyper-parameters from here at the start of each attempt; ``segments``: (end_element, group) by block.

        ``max_grad_norm``: what the gradient's global norm is clipped to.

        Raises:
            ConfigError: the model has been trained with another optimizer already.
        """
        if self._groups_fixed:
            raise ConfigError("optimizer: expected one for the model's life, found a second after the first step began")
        self._hyper_parameters = hyper_parameters
        self._segments = segments
        self._max_grad_norm = max_grad_norm

    def trainable_parts(self) -> dict[int, list[TrainablePart]]:
        """Return the parameters of each trainable block, in the order in which they lie there."""
        found: dict[int, list[TrainablePart]] = {}
        for unit in self.units:
            if (block := unit.trainable) is not None:
                ends = [slot.offset for slot in block.slots[1:]] + [block.elements]
                found[block.index] = [
                    TrainablePart(slot.parameter, slot.name, end) for slot, end in zip(block.slots, ends, strict=True)
                ]
        return found

    @property
    def grad_norm(self) -> float | None:
        """Global norm before clipping of the last attempt's gradient; None without clipping, or if it was given up."""
        return self._endpoint.grad_norm

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's own memory that blocks and gradients have, which torch does not count."""
        return self._staging.device_bytes

    @property
    def loss_scale(self) -> float:
        """Factor on the loss of the attempt that is under way, or comes next; 1 without float16 blocks."""
        return 1.0 if self._scaler is None else self._scaler.scale

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss, of the same value, whose backward is that of the scaled loss."""
        if self._scaler is None or not loss.requires_grad:
            return loss
        return scale_gradient(loss, self._scaler.scale, self._note_scaled)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context manager around the root's forward with gradients: starts an attempt, or goes on with one.

        Raises:
            StepOrderError: the last attempt's backward is done but its step is not, or there is no optimizer.
        """
        if backward_id() != -1 or self._in_root:
            where = "its own forward" if self._in_root else "backward"
            raise StepOrderError(f"forward of the model with gradients inside {where}: expected one forward a step")
        if self._phase is Phase.DONE:
            raise StepOrderError(
                f"forward after backward: expected optim.step() in between; {FINISH_FIRST}; for several backward "
                f"passes in one step, {ANNOUNCE}"
            )
        if self._phase in (Phase.FORWARD, Phase.BACKWARD):
            if self._gradients.keeps:
                raise StepOrderError(
                    "forward after one that was given up, within a step of several backward passes: expected "
                    "optim.zero_grad() in between, which drops the gradients so far; then begin the step again"
                )
            self.roll_back()
        if self._phase is Phase.BETWEEN:
            self._check_parameters()
        else:
            self._begin()
        self._begin_forward()
        self._in_root = True
        try:
            self.residence.acquire(self.units[0])
            with scaled_forward(self.loss_scale):
                yield
            self._check_unwritten()
        finally:
            self._in_root = False

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Context manager around backward passes whose gradients are kept for a later one.

        Raises:
            MemoryBudgetError: there is no room for them.
        """
        if not self._gradients.keeps:
            check_room_for_sums(self.units)
        outer, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = outer

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Context manager around the root's forward without gradients: only pulls."""
        if self._in_evaluation:
            yield
            return
        self._check_readable()
        self._in_evaluation = True
        try:
            with self.residence.inner_pass(self._passes[1]):
                self.residence.acquire(self.units[0])
                yield
                self._check_unwritten()
        finally:
            self._in_evaluation = False

    @contextmanager
    def reading(self, unit: Unit) -> Iterator[None]:
        """Context manager around any use of a unit's values without gradients."""
        if self.residence.has(unit) and not self.residence.is_kept(unit):
            yield
            return
        if not self._in_root and not self._in_evaluation:
            self._check_readable()
            with self.residence.inner_pass(Pass()):
                self.residence.acquire(unit)
                yield
                _check_unwritten(unit)
            return
        with self.present(unit):
            yield

    @contextmanager
    def present(self, unit: Unit) -> Iterator[None]:
        """Acquire a unit for its forward, and release it after."""
        self.residence.acquire(unit)
        try:
            yield
            _check_unwritten(unit)
        finally:
            self.residence.release_after_forward(unit)

    def start_call(self, unit: Unit) -> int:
        """Register a unit's forward with gradients; returns the attempt it belongs to.

        Raises:
            StepOrderError: the unit runs outside the model's forward, or twice in one.
        """
        if backward_id() != -1:
            raise StepOrderError(why_no_call(unit, "recomputed"))
        if not self._in_root:
            raise StepOrderError(why_no_call(unit, "alone"))
        if unit.index in self._called:
            raise StepOrderError(why_no_call(unit, "again"))
        self._called.add(unit.index)
        return self.attempt

    def start_use(self, unit: Unit) -> int | None:
        """Number a use of an outer unit with gradients in this forward, from 0; None: the unit must be held.

        It must within backward and evaluation, and where somebody else sees what autograd saves, as a checkpoint does.

        Raises:
            StepOrderError: the model's forward has not begun.
        """
        if self._in_evaluation or backward_id() != -1 or self.residence.is_held(unit):
            return None
        if self._phase is not Phase.FORWARD:
            raise StepOrderError(why_no_part(unit.name))
        if saved_tensors_are_seen():
            return None
        number = self._uses.get(unit.index, 0)
        self._uses[unit.index] = number + 1
        return number

    def hold(self, unit: Unit) -> bool:
        """Bring an outer unit's values, which stay until the forward's backward, or an evaluation, is over.

        Returns:
            False outside of both, where nobody has values.
        """
        if not (self._in_root or self._in_evaluation or self._phase is Phase.FORWARD or backward_id() != -1):
            return False
        if backward_id() != -1 and unit.index in self._finished:
            raise StepOrderError(why_late(unit, "a use of its values"))
        self.residence.hold(unit)
        return True

    def expect_part(self, unit: Unit) -> None:
        """Expect one slice of a unit, before its forward: the gradients of several slices come one by one."""
        self._cut.add(unit.index)
        self.residence.separate_gradients(unit)

    def enter_backward(self, attempt: int | None = None) -> None:
        """Note that a backward through the model is running, of the forward of ``attempt`` if that is known.

        Raises:
            StepOrderError: it is not the one backward of the current attempt.
        """
        task = backward_id()
        if attempt is not None and attempt != self.attempt:
            raise StepOrderError(
                "backward of an earlier forward: it was given up when a newer forward began; run forward, backward and "
                "optim.step() in turn, and forwards that need no gradients under torch.no_grad()"
            )
        if self._phase is Phase.BACKWARD and task == self._backward_id:
            return
        if self._phase is not Phase.FORWARD or self._in_root or task == -1:
            raise StepOrderError(why_no_backward(self._phase))
        if self._scaler is not None and self._scaled_backward != task:
            raise StepOrderError(NOT_SCALED)
        self._phase = Phase.BACKWARD
        self._backward_id = task
        self._to_keep = self._accumulating
        at_end_of_backward(self._finish_backward)

    def enter_unit(self, unit: Unit, attempt: int) -> None:
        """Enter a unit before any work of it in backward: pull its values, and end the unit that ran before."""
        self.enter_backward(attempt)
        if unit.index in self._finished:
            raise StepOrderError(why_late(unit, "work"))
        self._activate(unit)
        self.residence.acquire(unit)

    def enter_outer(self, unit: Unit, attempt: int, use: int) -> None:
        """Enter a use of an outer unit before any work of it in backward, and end the unit that ran before."""
        self.enter_backward(attempt)
        if unit.index in self._finished:
            raise StepOrderError(why_late(unit, "work"))
        self._activate(unit)
        self._active_use = use

    def _activate(self, unit: Unit) -> None:
        """End the work of the unit before. An outer unit goes backward through its uses: the first use is the last."""
        before, use = self._active, self._active_use
        if before is unit:
            return
        if before is not None and (use or self.residence.is_held(before)):
            if not self.residence.is_held(before):
                self.residence.release(before)
        elif before is not None:
            self.finish_unit(before)
        self._active, self._active_use = unit, 0

    def finish_unit(self, unit: Unit) -> None:
        """End a unit's work in this backward: push its gradients, or keep them, and release it."""
        if unit.index in self._finished:
            return
        if unit.trainable is not None and self._to_keep:
            self._gradients.keep(unit.trainable)
        elif unit.trainable is not None and not self._pushed_at_the_end(unit):
            self._gradients.push(unit.trainable)
        self._finished.add(unit.index)
        if self._active is unit:
            self._active = None
        self.residence.release(unit)

    def _pushed_at_the_end(self, unit: Unit) -> bool:
        """Return True if the unit is pushed after all others: another worker may not use it, and would wait.

        So several workers push these blocks behind all others, in one order: else two could wait for each other.
        """
        return unit.outer and self._session.workers > 1

    def finished(self, unit: Unit, attempt: int) -> bool:
        """Return True if the unit's work in the backward of this attempt is over."""
        return attempt == self.attempt and self._phase is Phase.BACKWARD and unit.index in self._finished

    def commit(self) -> bool:
        """End the attempt; True if the server committed it, False if it rolled it back.

        Raises:
            StepOrderError: there was no forward or no backward, or hyper-parameters changed since the forward.
        """
        if self._phase not in (Phase.BETWEEN, Phase.DONE):
            missing = "forward" if self._phase is Phase.IDLE else "backward that ran to its end"
            raise StepOrderError(f"optim.step(): expected a {missing} before it, found none since the last step")
        if not self._gradients_seen:
            raise StepOrderError("optim.step(): expected gradients, found none for any parameter; use loss.backward()")
        if self._current_hyper_parameters() != self._begun_with:
            raise StepOrderError(
                "optim.step(): hyper-parameters changed after the forward began; updates start during backward, so "
                "change them (scheduler.step() too) between optim.step() and the next forward"
            )
        if self._phase is Phase.BETWEEN:
            self._push_kept()
        return self._end_attempt(skip=False)

    def drop_gradients(self) -> None:
        """Roll back an attempt whose backward has run; one that is before a backward goes on, without earlier ones."""
        if self._phase in (Phase.BETWEEN, Phase.DONE) or (self._phase is Phase.BACKWARD and backward_id() == -1):
            self.roll_back()
        elif self._phase is Phase.FORWARD and self._gradients.keeps:
            self._gradients.clear()
            self._gradients_seen = False

    def roll_back(self) -> None:
        """Give the current attempt up; parameters stay as the last committed step left them."""
        self.residence.drop_pass()
        self.residence.release_all()
        self._gradients.clear()
        if self.offload is not None:
            self.offload.clear()
        self._end_attempt(skip=True)

    def _end_attempt(self, *, skip: bool) -> bool:
        self._staging.settle()
        if self._vote is None:  # else an exception (Ctrl-C) ended the wait: a worker has one vote in an attempt
            self._vote = self._endpoint.commit(skip)
        end = self._endpoint.wait(self._vote)
        committed = end == COMMITTED
        self._vote = None
        self._phase = Phase.IDLE
        self._session.count_step(committed)
        if self._scaler is not None:
            self._scaler.count(end)
        self._staging.answered()
        if not committed:
            # Others may have given it up elsewhere, and expect what they expected before: all must pull in one order.
            self._passes[0].revert()
        self._window.end_attempt(committed=committed)  # last: it takes a while, and Ctrl-C finds the step ended
        return committed

    def _begin(self) -> None:
        hyper_parameters = self._current_hyper_parameters()
        if not self._groups_fixed:
            check_all_known(self.units[0].module, self.units)
        self._check_parameters()
        if not self._groups_fixed and len(hyper_parameters) > 1:
            for block, segments in self._segments.items():
                self._session.set_segments(block, segments)
        self._groups_fixed = True
        loss_scale = None if self._scaler is None else self._scaler.state
        self._endpoint.begin(hyper_parameters, self._max_grad_norm, loss_scale)
        self._begun_with = hyper_parameters
        self._gradients_seen = False
        self._passes[0].remember()
        self._window.begin_attempt()

    def _begin_forward(self) -> None:
        self._phase = Phase.FORWARD
        self.attempt += 1
        self._called.clear()
        self._finished.clear()
        self._cut.clear()
        self._uses.clear()
        self._active, self._active_use = None, 0
        self.residence.start_pass(self._passes[0])

    def take_gradient(self, unit: Unit, index: int, gradient: Tensor) -> None:
        """Take the gradient of a trainable parameter of the unit, by its slot."""
        block = unit.trainable
        assert block is not None
        self.enter_backward()
        if unit.index in self._finished:
            raise StepOrderError(why_late(unit, f"a gradient of {block.slots[index].name}"))
        self._gradients_seen = True
        self._gradients.write(block, index, gradient, part=unit.index in self._cut, to_keep=self._to_keep)

    def _finish_backward(self) -> None:
        for unit in self._in_order_of_backward():
            self.finish_unit(unit)
        for unit in self._in_order_of_backward():
            if unit.trainable is not None and not self._to_keep and self._pushed_at_the_end(unit):
                self._gradients.push(unit.trainable)
        self.residence.finish_pass()
        if self.offload is not None:
            self.offload.clear()
        self._phase = Phase.BETWEEN if self._to_keep else Phase.DONE

    def _push_kept(self) -> None:
        """Push everything: no backward has done it."""
        try:
            for unit in self._in_order_of_backward():
                if unit.trainable is not None:
                    self._gradients.push(unit.trainable)
        except BaseException:
            self.roll_back()
            raise
        self._phase = Phase.DONE

    def _note_scaled(self) -> None:
        self._scaled_backward = backward_id()

    def _in_order_of_backward(self) -> list[Unit]:
        return [*reversed(self.units[1:]), self.units[0]]

    def _current_hyper_parameters(self) -> list[HyperParameters]:
        if self._hyper_parameters is None:
            raise StepOrderError(
                "forward with gradients before there is an optimizer: make one first, such as luwu.AdamW(model, ...), "
                "or run the forward under torch.no_grad()"
            )
        return self._hyper_parameters()

    def _check_parameters(self) -> None:
        for unit in self.units:
            for block in unit.blocks:
                for slot in block.slots:
                    check_parameter(slot, block.trainable)

    def _check_unwritten(self) -> None:
        for unit in self.units:
            if unit.index == 0 or self.residence.is_held(unit):
                _check_unwritten(unit)

    def _check_readable(self) -> None:
        if self._phase is Phase.BACKWARD and backward_id() == -1:
            self.roll_back()
        if self._phase in (Phase.BACKWARD, Phase.DONE):
            raise StepOrderError(f"use of the model between backward and optim.step(): {FINISH_FIRST}")


def _check_unwritten(unit: Unit) -> None:
    for block in unit.blocks:
        for slot in block.slots:
            check_unwritten(slot)


def _hand_over_gradient(runtime: weakref.ref[Runtime], unit: int, index: int, parameter: Tensor) -> None:
    """Take a gradient away from its parameter. Torch keeps this hook out of the collector's sight: a weak reference."""
    gradient, parameter.grad = parameter.grad, None
    owner = runtime()
    if owner is not None and gradient is not None:
        owner.take_gradient(owner.units[unit], index, gradient)
