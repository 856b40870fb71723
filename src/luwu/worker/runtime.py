"""Drives the units of a model: the calls of forwards, of autograd and of the optimizer become events of attempts.

`step_machine` has what may happen when, `executor` carries it out, `server_attempt` has the server's side of an
attempt, `backward` the units' work in backward, and `residence` the values that are here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor

from luwu.core.progress import Activity, WorkerPhase
from luwu.core.protocols import DRIVER_ATTRIBUTE, HyperParameters, TrainablePart, WorkerSession
from luwu.core.trace import Kind
from luwu.worker.autograd import backward_id, saved_tensors_are_seen
from luwu.worker.backward import Backward
from luwu.worker.executor import Executor
from luwu.worker.flatten import Unit, trainable_parts
from luwu.worker.gradients import Gradients
from luwu.worker.host_memory import check_room_for_sums
from luwu.worker.kept import KeptBlocks
from luwu.worker.loss_scale import LossScaler, scale_gradient, scaled_forward
from luwu.worker.micro_batches import MicroBatches
from luwu.worker.offload import Offload
from luwu.worker.passes import Pass
from luwu.worker.residence import Residence
from luwu.worker.rules import check_held_unwritten, check_unit_unwritten, note_versions
from luwu.worker.server_attempt import ServerAttempt
from luwu.worker.staging import Staging
from luwu.worker.step_machine import Around, Event, Phase
from luwu.worker.uncopyable import Uncopyable
from luwu.worker.window import Window

_WORKER_PHASES = {
    Phase.IDLE: WorkerPhase.BETWEEN_STEPS,
    Phase.FORWARD: WorkerPhase.FORWARD,
    Phase.BACKWARD: WorkerPhase.BACKWARD,
    Phase.BETWEEN: WorkerPhase.AFTER_BACKWARD,
    Phase.DONE: WorkerPhase.AFTER_BACKWARD,
}


class Runtime(Uncopyable):
    """Drives the units of one model through attempts.

    ``optimizer`` is the kind whose states the store keeps; ``scaler``, where blocks are float16, has the loss's scale.
    """

    def __init__(
        self,
        units: list[Unit],
        session: WorkerSession,
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
        window = Window(staging, kept)
        self._trace = trace = session.trace
        self.residence = Residence(units, window, staging.device, trace)
        self.micro_batches = micro_batches
        self.checkpoint = checkpoint
        self.offload = offload
        self.mixed = len({block.dtype for unit in units for block in unit.blocks}) > 1
        self._staging = staging
        self._server = ServerAttempt(session, scaler)
        self.backward = Backward(units, self.residence, Gradients(units, staging), session.workers, trace)
        self._executor = Executor(units, self.residence, window, staging, self._server, self.backward, offload, trace)
        self._in_root = False
        self._in_evaluation = False
        self._called: set[int] = set()
        self._uses: dict[int, int] = {}  # uses of outer units in this forward
        self._scaled_backward = -1  # the last one that began with a scaled loss
        self._evaluation_pass = Pass()
        note_versions(units)
        for unit in units:
            if unit.trainable is not None:
                for index, slot in enumerate(unit.trainable.slots):
                    setattr(slot.parameter, DRIVER_ATTRIBUTE, self)
                    hook = partial(_hand_over_gradient, weakref.ref(self), unit.index, index)
                    slot.parameter.register_post_accumulate_grad_hook(hook)
        session.tell_progress(partial(_activity_of, weakref.ref(self)))

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
        self._server.bind(hyper_parameters, segments, max_grad_norm)

    def trainable_parts(self) -> dict[int, list[TrainablePart]]:
        """Return the parameters of each trainable block, in the order in which they lie there."""
        return trainable_parts(self.units)

    @property
    def grad_norm(self) -> float | None:
        """Global norm before clipping of the last attempt's gradient; None without clipping, or if it was given up."""
        return self._server.grad_norm

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's own memory that blocks and gradients have, which torch does not count."""
        return self._staging.device_bytes

    @property
    def attempt(self) -> int:
        """Number of the forward that came last."""
        return self._executor.attempt

    def activity(self) -> Activity:
        """Return what this worker does now. Any thread may ask."""
        phase = WorkerPhase.ENDING if self._server.ending else _WORKER_PHASES[self._executor.phase]
        return Activity(phase, self.residence.latest, self.residence.acquired, self.backward.pushed)

    @property
    def loss_scale(self) -> float:
        """Factor on the loss of the attempt that is under way, or comes next; 1 without float16 blocks."""
        return self._server.loss_scale

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss, of the same value, whose backward is that of the scaled loss."""
        if not self._server.scales or not loss.requires_grad:
            return loss

        def note() -> None:
            self._scaled_backward = backward_id()

        return scale_gradient(loss, self._server.loss_scale, note)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context manager around the root's forward with gradients: starts an attempt, or goes on with one.

        Raises:
            StepOrderError: the last attempt's backward is done but its step is not, or there is no optimizer.
        """
        self._executor.carry_out(Event.FORWARD, Around(self._in_root, backward_id() != -1, kept=self.backward.kept))
        self._called.clear()
        self._uses.clear()
        self._in_root = True
        begun = self._trace.begin()
        try:
            self.residence.acquire(self.units[0])
            with scaled_forward(self.loss_scale):
                yield
            self._trace.end(Kind.FORWARD, begun)
            check_held_unwritten(self.units, self.residence)
        finally:
            self._in_root = False

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Context manager around backward passes whose gradients are kept for a later one.

        Raises:
            MemoryBudgetError: there is no room for them.
        """
        if not self.backward.kept:
            check_room_for_sums(self.units)
        outer, self._executor.accumulating = self._executor.accumulating, True
        try:
            yield
        finally:
            self._executor.accumulating = outer

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Context manager around the root's forward without gradients: only pulls."""
        if self._in_evaluation:
            yield
            return
        self._executor.carry_out(Event.READ, Around(in_backward=backward_id() != -1))
        self._in_evaluation = True
        try:
            with self.residence.inner_pass(self._evaluation_pass):
                self.residence.acquire(self.units[0])
                yield
                check_held_unwritten(self.units, self.residence)
        finally:
            self._in_evaluation = False

    @contextmanager
    def reading(self, unit: Unit) -> Iterator[None]:
        """Context manager around any use of a unit's values without gradients."""
        if self.residence.has(unit) and not self.residence.is_kept(unit):
            yield
            return
        if not self._in_root and not self._in_evaluation:
            self._executor.carry_out(Event.READ, Around(in_backward=backward_id() != -1))
            with self.residence.inner_pass(Pass()):
                self.residence.acquire(unit)
                yield
                check_unit_unwritten(unit)
            return
        with self.present(unit):
            yield

    @contextmanager
    def present(self, unit: Unit) -> Iterator[None]:
        """Acquire a unit for its forward, and release it after."""
        self.residence.acquire(unit)
        begun = self._trace.begin()
        try:
            yield
            self._trace.end(Kind.FORWARD, begun, unit.number)
            check_unit_unwritten(unit)
        finally:
            self.residence.release_after_forward(unit)

    def start_call(self, unit: Unit) -> int:
        """Register a unit's forward with gradients; returns the attempt it belongs to.

        Raises:
            StepOrderError: the unit runs outside the model's forward, or twice in one.
        """
        around = Around(self._in_root, backward_id() != -1, called=unit.index in self._called)
        self._executor.require(Event.CALL, around, f"block {unit.name}: ")
        self._called.add(unit.index)
        return self.attempt

    def start_use(self, unit: Unit) -> int | None:
        """Number a use of an outer unit with gradients in this forward, from 0; None: the unit must be held.

        The unit must be held in backward, in evaluation, and inside a checkpoint, whose hooks see the saved tensors.

        Raises:
            StepOrderError: the model's forward has not begun.
        """
        if self._in_evaluation or backward_id() != -1 or self.residence.is_held(unit):
            return None
        self._executor.require(Event.USE, Around(self._in_root), f"module {unit.name}: ")
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
        in_backward = backward_id() != -1
        if not (self._in_root or self._in_evaluation or in_backward or self._executor.phase is Phase.FORWARD):
            return False
        if in_backward:
            self.backward.require_open(unit, "a use of its values")
        self.residence.hold(unit)
        return True

    def enter_backward(self, attempt: int | None = None) -> None:
        """Note that a backward through the model is running, of the forward of ``attempt`` if that is known.

        Raises:
            StepOrderError: it is not the one backward of the current attempt.
        """
        task = backward_id()
        current = attempt is None or attempt == self.attempt
        own = task == self._executor.backward_id
        if current and own and self._executor.phase is Phase.BACKWARD:
            return  # as the machine would say, for each gradient
        scaled = not self._server.scales or self._scaled_backward == task
        self._executor.carry_out(Event.BACKWARD, Around(self._in_root, task != -1, own, current, scaled))

    def enter_unit(self, unit: Unit, attempt: int) -> None:
        """Enter a unit before any work of it in backward: pull its values, and end the unit that ran before."""
        self.enter_backward(attempt)
        self.backward.require_open(unit, "work")
        self.backward.activate(unit)
        self.residence.acquire(unit)
        self.backward.begin_work()

    def enter_outer(self, unit: Unit, attempt: int, use: int) -> None:
        """Enter a use of an outer unit before any work of it in backward, and end the unit that ran before."""
        self.enter_backward(attempt)
        self.backward.require_open(unit, "work")
        self.backward.activate(unit, use)
        self.backward.begin_work()

    def finished(self, unit: Unit, attempt: int) -> bool:
        """Return True if the unit's work in the backward of this attempt is over."""
        in_backward = attempt == self.attempt and self._executor.phase is Phase.BACKWARD
        return in_backward and self.backward.has_finished(unit)

    def commit(self) -> bool:
        """End the attempt; True if the server committed it, False if it rolled it back.

        Raises:
            StepOrderError: there was no forward or no backward, or hyper-parameters changed since the forward.
        """
        return self._executor.commit()

    def wait_durable(self) -> None:
        """Return when the last step that was answered is on the disk."""
        self._server.wait_durable()

    def drop_gradients(self) -> None:
        """Roll back an attempt whose backward has run; one that is before a backward goes on, without earlier ones."""
        self._executor.carry_out(Event.DROP, Around(in_backward=backward_id() != -1, kept=self.backward.kept))

    def take_gradient(self, unit: Unit, index: int, gradient: Tensor) -> None:
        """Take the gradient of a trainable parameter of the unit, by its slot."""
        self.enter_backward()
        self.backward.take(unit, index, gradient)


def _hand_over_gradient(runtime: weakref.ref[Runtime], unit: int, index: int, parameter: Tensor) -> None:
    """Take a gradient away from its parameter. Torch keeps this hook out of the collector's sight: a weak reference."""
    gradient, parameter.grad = parameter.grad, None
    owner = runtime()
    if owner is not None and gradient is not None:
        owner.take_gradient(owner.units[unit], index, gradient)


def _activity_of(runtime: weakref.ref[Runtime]) -> Activity | None:
    """Return what the worker does, None once its model is gone: the thread that asks must not keep it."""
    owner = runtime()
    return None if owner is None else owner.activity()
