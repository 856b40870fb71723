"""The steps of a worker as a pure machine: a phase and an event give actions and the next phase, or a refusal.

An attempt at a step starts at the root's forward, goes on in backward, perhaps with more of both, and ends with
``optim.step()``. The machine knows no tensor and no server: `Executor` asks it, and carries its actions out in order. A
phase is entered when all of them have succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

FINISH_FIRST = "call optim.step(), or optim.zero_grad() to drop the gradients, first"
ALONE = "called with gradients on its own, expected a call from the forward of the model given to parallelize"
CALL_THE_MODEL = "call the model, or use torch.no_grad()"
NOT_HERE = f"{ALONE}, because its parameters are not here; {CALL_THE_MODEL}"
ANNOUNCE = "run all backward passes of a step but the last within `with luwu.no_sync(model):`"


class Phase(Enum):
    """Phase of an attempt at a step."""

    IDLE = auto()
    FORWARD = auto()
    BACKWARD = auto()
    BETWEEN = auto()  # backward is over, its gradients are kept here, and another forward may follow
    DONE = auto()  # backward is over, the step is not


class Event(Enum):
    """Event: a request of the user's program, or work of autograd."""

    FORWARD = auto()  # the root's forward with gradients begins
    BACKWARD = auto()  # work of a backward through the model
    BACKWARD_END = auto()  # that backward has ended without an exception
    STEP = auto()  # optim.step()
    DROP = auto()  # optim.zero_grad()
    READ = auto()  # a use of values without gradients
    CALL = auto()  # a unit's forward with gradients begins
    USE = auto()  # a use of an outer unit with gradients begins


class Action(Enum):
    """Action of the worker that follows an event."""

    ROLL_BACK = auto()  # give the attempt up
    BEGIN = auto()  # begin an attempt with the server
    CHECK_PARAMETERS = auto()  # check that nobody has changed them, as the beginning of an attempt does
    START_FORWARD = auto()
    START_BACKWARD = auto()
    PUSH_KEPT = auto()  # push the gradients that were kept here
    END = auto()  # ask the server to commit the attempt
    CLEAR_KEPT = auto()  # forget the gradients that were kept here


@dataclass(frozen=True)
class Around:
    """Facts beside the phase when an event comes.

    Attributes:
        in_forward: the root's forward is running.
        in_backward: a backward is running, of this model or not.
        own_backward: the running backward belongs to the attempt.
        current: the work belongs to the forward that came last.
        scaled: the loss of this backward was scaled, or needs no scale.
        keeping: gradients of this backward are kept here for a later one.
        kept: gradients of earlier backward passes are kept here.
        gradients: a parameter has got a gradient in this attempt.
        settings_changed: hyper-parameters have changed since the attempt began.
        called: the unit of a call has been called in this forward before.
    """

    in_forward: bool = False
    in_backward: bool = False
    own_backward: bool = False
    current: bool = True
    scaled: bool = True
    keeping: bool = False
    kept: bool = False
    gradients: bool = True
    settings_changed: bool = False
    called: bool = False


@dataclass(frozen=True)
class Decision:
    """Actions in their order, and the phase after them; or a ``refusal``, which changes nothing."""

    phase: Phase
    actions: tuple[Action, ...] = ()
    refusal: str = ""


def decide(phase: Phase, event: Event, around: Around) -> Decision:
    """Return the decision on an event in a phase."""
    return _RULES[event](phase, around)


def _forward(phase: Phase, around: Around) -> Decision:
    if around.in_backward or around.in_forward:
        where = "its own forward" if around.in_forward else "backward"
        return _refused(phase, f"forward of the model with gradients inside {where}: expected one forward a step")
    if phase is Phase.DONE:
        return _refused(
            phase,
            f"forward after backward: expected optim.step() in between; {FINISH_FIRST}; where a trainer steps, "
            f"give it LuWu's optimizer (transformers: optimizers=(optim, None)), because steps of another one change "
            f"nothing; for several backward passes in one step, {ANNOUNCE}",
        )
    if phase is Phase.BETWEEN:
        return Decision(Phase.FORWARD, (Action.CHECK_PARAMETERS, Action.START_FORWARD))
    if phase is Phase.IDLE:
        return Decision(Phase.FORWARD, (Action.BEGIN, Action.START_FORWARD))
    if around.kept:
        return _refused(
            phase,
            "forward after one that was given up, within a step of several backward passes: expected "
            "optim.zero_grad() in between, which drops the gradients so far; then begin the step again",
        )
    return Decision(Phase.FORWARD, (Action.ROLL_BACK, Action.BEGIN, Action.START_FORWARD))


def _backward(phase: Phase, around: Around) -> Decision:
    if not around.current:
        return _refused(
            phase,
            "backward of an earlier forward: it was given up when a newer forward began; run forward, backward and "
            "optim.step() in turn, and forwards that need no gradients under torch.no_grad()",
        )
    if phase is Phase.BACKWARD and around.own_backward:
        return Decision(phase)
    if phase is not Phase.FORWARD or around.in_forward or not around.in_backward:
        return _refused(phase, why_no_backward(phase))
    if not around.scaled:
        return _refused(phase, NOT_SCALED)
    return Decision(Phase.BACKWARD, (Action.START_BACKWARD,))


def _backward_end(phase: Phase, around: Around) -> Decision:
    return Decision(Phase.BETWEEN if around.keeping else Phase.DONE)


def _step(phase: Phase, around: Around) -> Decision:
    if phase not in (Phase.BETWEEN, Phase.DONE):
        missing = "forward" if phase is Phase.IDLE else "backward that ran to its end"
        return _refused(phase, f"optim.step(): expected a {missing} before it, found none since the last step")
    if not around.gradients:
        return _refused(phase, "optim.step(): expected gradients, found none for any parameter; use loss.backward()")
    if around.settings_changed:
        return _refused(
            phase,
            "optim.step(): hyper-parameters changed after the forward began; updates start during backward, so "
            "change them (scheduler.step() too) between optim.step() and the next forward",
        )
    push = (Action.PUSH_KEPT,) if phase is Phase.BETWEEN else ()
    return Decision(Phase.IDLE, (*push, Action.END))


def _drop(phase: Phase, around: Around) -> Decision:
    if phase in (Phase.BETWEEN, Phase.DONE) or (phase is Phase.BACKWARD and not around.in_backward):
        return Decision(Phase.IDLE, (Action.ROLL_BACK,))
    if phase is Phase.FORWARD and around.kept:
        return Decision(phase, (Action.CLEAR_KEPT,))
    return Decision(phase)


def _read(phase: Phase, around: Around) -> Decision:
    if phase is Phase.BACKWARD and not around.in_backward:  # an exception ended it
        return Decision(Phase.IDLE, (Action.ROLL_BACK,))
    if phase in (Phase.BACKWARD, Phase.DONE):
        return _refused(phase, f"use of the model between backward and optim.step(): {FINISH_FIRST}")
    return Decision(phase)


def _call(phase: Phase, around: Around) -> Decision:
    if around.in_backward:
        return _refused(
            phase,
            "its forward runs again inside backward; switch the model's own activation checkpointing off: "
            "parallelize(checkpoint=True) does it",
        )
    if not around.in_forward:
        return _refused(phase, f"{ALONE}; {CALL_THE_MODEL}")
    if around.called:
        return _refused(
            phase,
            "called a second time in one forward, expected once; pass `blocks` without it (`blocks=[]` for none), "
            "then its parameters lie in the root, which may be used any number of times",
        )
    return Decision(phase)


def _use(phase: Phase, around: Around) -> Decision:
    return Decision(phase) if phase is Phase.FORWARD else _refused(phase, NOT_HERE)


_RULES = {
    Event.FORWARD: _forward,
    Event.BACKWARD: _backward,
    Event.BACKWARD_END: _backward_end,
    Event.STEP: _step,
    Event.DROP: _drop,
    Event.READ: _read,
    Event.CALL: _call,
    Event.USE: _use,
}


def _refused(phase: Phase, why: str) -> Decision:
    return Decision(phase, refusal=why)


NOT_SCALED = (
    "backward of a model with float16 blocks: expected its loss to be scaled, found one that is not, whose small "
    "gradients would be lost; call optim.scale(loss).backward(), with luwu's own optimizer and no GradScaler"
)


def why_no_backward(phase: Phase) -> str:
    """Say why a backward is refused in this phase."""
    if phase is Phase.DONE:
        return (
            f"a second backward before optim.step(): expected one a step; add the losses up and call backward once, "
            f"or {ANNOUNCE}, or {FINISH_FIRST}"
        )
    if phase is Phase.BACKWARD:
        return (
            "a second backward while the first has not ended: use no reentrant checkpointing inside the model, and "
            "after an exception in backward run the forward again"
        )
    if phase is Phase.BETWEEN:
        return "a second backward of one forward: expected one for each; run the forward again"
    if phase is Phase.IDLE:
        return "backward after optim.step(): the values of its forward are gone; run the forward again"
    return "backward inside the model's forward: expected it after"
