"""Executor of the worker's step machine: brings events to it, and carries its actions out."""

from __future__ import annotations

from luwu.core.errors import AttemptVoidError, StepOrderError
from luwu.core.protocols import VOID
from luwu.core.trace import Kind, WorkerTrace
from luwu.worker.autograd import at_end_of_backward, backward_id
from luwu.worker.backward import Backward
from luwu.worker.flatten import Unit
from luwu.worker.offload import Offload
from luwu.worker.passes import Pass
from luwu.worker.residence import Residence
from luwu.worker.rules import check_all_known, check_parameters
from luwu.worker.server_attempt import ServerAttempt
from luwu.worker.staging import Staging
from luwu.worker.step_machine import Action, Around, Decision, Event, Phase, decide
from luwu.worker.window import Window


class Executor:
    """Takes a model through attempts at steps, each from its beginning with the server to its end.

    Attributes:
        phase: phase of the attempt that is under way.
        attempt: number of the forward that came last, from 1.
        backward_id: number of the last backward of an attempt.
        accumulating: gradients of a backward that begins now are kept for a later one.
    """

    def __init__(
        self,
        units: list[Unit],
        residence: Residence,
        window: Window,
        staging: Staging,
        server: ServerAttempt,
        backward: Backward,
        offload: Offload | None,
        trace: WorkerTrace,
    ) -> None:
        self._units = units
        self._trace = trace
        self._backward_since = 0
        self._residence = residence
        self._window = window
        self._staging = staging
        self._server = server
        self._backward = backward
        self._offload = offload
        self._pass = Pass()
        self.phase = Phase.IDLE
        self.attempt = 0
        self.backward_id = -1
        self.accumulating = False

    def require(self, event: Event, around: Around, about: str = "") -> Decision:
        """Return the machine's decision on an event; ``about``: words before a refusal.

        Raises:
            StepOrderError: the event is refused.
        """
        decision = decide(self.phase, event, around)
        if decision.refusal:
            raise StepOrderError(about + decision.refusal)
        return decision

    def carry_out(self, event: Event, around: Around) -> None:
        """Carry out the decision on an event; the phase changes once everything has succeeded."""
        decision = self.require(event, around)
        for action in decision.actions:
            self._act(action)
        self.phase = decision.phase

    def commit(self) -> bool:
        """End the attempt; True if the server committed it, False if it rolled it back.

        Raises:
            AttemptVoidError: a worker was lost in it; the model is ready for the same batch.
            StepOrderError: there was no forward or no backward, or hyper-parameters changed since the forward.
        """
        over = self.phase in (Phase.BETWEEN, Phase.DONE)
        changed = over and self._backward.gradients_seen and self._server.settings_changed()
        around = Around(gradients=self._backward.gradients_seen, settings_changed=changed)
        if Action.PUSH_KEPT in self.require(Event.STEP, around).actions:
            try:
                self._backward.push_kept()
            except BaseException:
                self._roll_back()
                raise
            self.phase = Phase.DONE
        return self._end_attempt(skip=False)

    def _act(self, action: Action) -> None:
        if action is Action.ROLL_BACK:
            self._roll_back()
        elif action is Action.BEGIN:
            self._begin()
        elif action is Action.CHECK_PARAMETERS:
            check_parameters(self._units)
        elif action is Action.START_FORWARD:
            self._start_forward()
        elif action is Action.START_BACKWARD:
            self.backward_id = backward_id()
            self._backward_since = self._trace.begin()
            self._backward.keeping = self.accumulating
            at_end_of_backward(self._finish_backward)
        elif action is Action.CLEAR_KEPT:
            self._backward.clear()
            self._backward.gradients_seen = False
        else:
            raise AssertionError(f"{action} belongs to a call that returns something")

    def _begin(self) -> None:
        hyper_parameters = self._server.hyper_parameters()
        if not self._server.begun:
            check_all_known(self._units[0].module, self._units)
        check_parameters(self._units)
        if self._server.begin(hyper_parameters):
            self._pass.forget()
        self._backward.gradients_seen = False
        self._backward.pushed = self._residence.acquired = 0
        self._pass.remember()
        self._window.begin_attempt()

    def _start_forward(self) -> None:
        self.phase = Phase.FORWARD
        self.attempt += 1
        self._backward.start_forward()
        self._residence.start_pass(self._pass)

    def _finish_backward(self) -> None:
        self._backward.finish_all()
        self._trace.end(Kind.BACKWARD, self._backward_since)
        self._residence.finish_pass()
        if self._offload is not None:
            self._offload.clear()
        self.carry_out(Event.BACKWARD_END, Around(keeping=self._backward.keeping))

    def _roll_back(self) -> None:
        """Give the attempt up; parameters stay as the last committed step left them."""
        self._residence.drop_pass()
        self._residence.release_all()
        self._backward.clear()
        if self._offload is not None:
            self._offload.clear()
        self._end_attempt(skip=True)

    def _end_attempt(self, *, skip: bool) -> bool:
        self._staging.settle()
        end = self._server.wait_for_end(skip=skip)
        self.phase = Phase.IDLE
        committed = self._server.count(end)
        self._staging.answered()
        if not committed:
            # Others may have given it up elsewhere, and expect what they expected before: all must pull in one order.
            self._pass.revert()
        self._window.end_attempt(committed=committed)  # last: it takes a while, and Ctrl-C finds the step ended
        if end == VOID and not skip:
            raise AttemptVoidError(
                "this attempt at a step is void, because a worker was lost in it: run forward, backward and "
                "optim.step() with the same batch again, or give optim.step() a closure that does, and it will"
            )
        return committed
