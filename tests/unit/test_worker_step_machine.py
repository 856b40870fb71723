"""The worker's step machine: every phase with every event, and what each refusal says."""

import itertools

import pytest

from luwu.worker.step_machine import Action, Around, Event, Phase, decide

ROLL_BACK, BEGIN, CHECK, FORWARD, BACKWARD, PUSH, END, CLEAR = Action
IDLE, FORWARDS, BACKWARDS, BETWEEN, DONE = Phase
HERE = Around(in_backward=True)

# phase, event, what is so beside it -> the next phase and the actions, or words of the refusal
TABLE = [
    # the root's forward with gradients
    (IDLE, Event.FORWARD, Around(), FORWARDS, [BEGIN, FORWARD]),
    (FORWARDS, Event.FORWARD, Around(), FORWARDS, [ROLL_BACK, BEGIN, FORWARD]),
    (BACKWARDS, Event.FORWARD, Around(), FORWARDS, [ROLL_BACK, BEGIN, FORWARD]),
    (BETWEEN, Event.FORWARD, Around(), FORWARDS, [CHECK, FORWARD]),
    (DONE, Event.FORWARD, Around(), "expected optim.step() in between"),
    (FORWARDS, Event.FORWARD, Around(kept=True), "optim.zero_grad() in between"),
    (BACKWARDS, Event.FORWARD, Around(kept=True), "optim.zero_grad() in between"),
    (BETWEEN, Event.FORWARD, Around(kept=True), FORWARDS, [CHECK, FORWARD]),
    *((phase, Event.FORWARD, Around(in_forward=True), "inside its own forward") for phase in Phase),
    *((phase, Event.FORWARD, HERE, "inside backward") for phase in Phase),
    # work of a backward
    (FORWARDS, Event.BACKWARD, HERE, BACKWARDS, [BACKWARD]),
    (BACKWARDS, Event.BACKWARD, Around(in_backward=True, own_backward=True), BACKWARDS, []),
    (BACKWARDS, Event.BACKWARD, HERE, "while the first has not ended"),
    (IDLE, Event.BACKWARD, HERE, "backward after optim.step()"),
    (BETWEEN, Event.BACKWARD, HERE, "a second backward of one forward"),
    (DONE, Event.BACKWARD, HERE, "a second backward before optim.step()"),
    (FORWARDS, Event.BACKWARD, Around(in_backward=True, in_forward=True), "inside the model's forward"),
    (FORWARDS, Event.BACKWARD, Around(), "inside the model's forward"),
    (FORWARDS, Event.BACKWARD, Around(in_backward=True, scaled=False), "expected its loss to be scaled"),
    (BACKWARDS, Event.BACKWARD, Around(in_backward=True, own_backward=True, scaled=False), BACKWARDS, []),
    *((phase, Event.BACKWARD, Around(in_backward=True, current=False), "of an earlier forward") for phase in Phase),
    # its end
    (BACKWARDS, Event.BACKWARD_END, HERE, DONE, []),
    (BACKWARDS, Event.BACKWARD_END, Around(in_backward=True, keeping=True), BETWEEN, []),
    # optim.step()
    (DONE, Event.STEP, Around(), IDLE, [END]),
    (BETWEEN, Event.STEP, Around(kept=True), IDLE, [PUSH, END]),
    (IDLE, Event.STEP, Around(), "expected a forward before it"),
    (FORWARDS, Event.STEP, Around(), "expected a backward that ran to its end before it"),
    (BACKWARDS, Event.STEP, Around(), "expected a backward that ran to its end before it"),
    *((phase, Event.STEP, Around(gradients=False), "found none for any parameter") for phase in (BETWEEN, DONE)),
    *((phase, Event.STEP, Around(settings_changed=True), "hyper-parameters changed") for phase in (BETWEEN, DONE)),
    # optim.zero_grad()
    (IDLE, Event.DROP, Around(), IDLE, []),
    (FORWARDS, Event.DROP, Around(), FORWARDS, []),
    (FORWARDS, Event.DROP, Around(kept=True), FORWARDS, [CLEAR]),
    (BACKWARDS, Event.DROP, Around(), IDLE, [ROLL_BACK]),
    (BACKWARDS, Event.DROP, HERE, BACKWARDS, []),
    (BETWEEN, Event.DROP, Around(kept=True), IDLE, [ROLL_BACK]),
    (DONE, Event.DROP, Around(), IDLE, [ROLL_BACK]),
    # values without gradients
    *((phase, Event.READ, Around(), phase, []) for phase in (IDLE, FORWARDS, BETWEEN)),
    (BACKWARDS, Event.READ, Around(), IDLE, [ROLL_BACK]),
    (BACKWARDS, Event.READ, HERE, "between backward and optim.step()"),
    (DONE, Event.READ, Around(), "between backward and optim.step()"),
    # a unit's forward with gradients
    (FORWARDS, Event.CALL, Around(in_forward=True), FORWARDS, []),
    *((phase, Event.CALL, HERE, "its forward runs again inside backward; switch the model's") for phase in Phase),
    (FORWARDS, Event.CALL, Around(in_forward=True, in_backward=True), "its forward runs again inside backward"),
    *((phase, Event.CALL, Around(), "on its own, expected a call from the forward of the model") for phase in Phase),
    (FORWARDS, Event.CALL, Around(called=True), "called with gradients on its own"),
    (FORWARDS, Event.CALL, Around(in_forward=True, called=True), "called a second time in one forward"),
    # a use of an outer unit with gradients, in the model's forward or after it
    (FORWARDS, Event.USE, Around(in_forward=True), FORWARDS, []),
    (FORWARDS, Event.USE, Around(), FORWARDS, []),
    *((phase, Event.USE, Around(), "because its parameters are not here") for phase in Phase if phase is not FORWARDS),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0].name}-{row[1].name}-{row[3]}"[:60])
def test_a_phase_and_an_event_give_actions_or_a_refusal(row) -> None:
    phase, event, around, *expected = row
    found = decide(phase, event, around)
    if isinstance(expected[0], str):
        assert expected[0] in found.refusal
        assert (found.phase, found.actions) == (phase, ())
    else:
        assert (found.phase, list(found.actions), found.refusal) == (*expected, "")


def test_every_phase_meets_every_event() -> None:
    met = {(phase, event) for phase, event, *_ in TABLE}
    ends_in_backward_alone = {(phase, Event.BACKWARD_END) for phase in Phase if phase is not Phase.BACKWARD}
    assert met == set(itertools.product(Phase, Event)) - ends_in_backward_alone


def test_no_action_is_left_out() -> None:
    assert {action for row in TABLE if isinstance(row[3], Phase) for action in row[4]} == set(Action)


def test_whatever_a_program_does_an_attempt_has_begun_before_it_ends() -> None:
    """All calls of a length in all situations: no end without a beginning, and no second beginning before an end."""
    states = {(Phase.IDLE, False)}
    flags = [Around(kept=kept, keeping=keeping) for kept in (False, True) for keeping in (False, True)]
    flags += [
        Around(in_backward=True, own_backward=own, keeping=keeping)
        for own in (False, True)
        for keeping in (False, True)
    ]
    for _ in range(6):
        after = set()
        for (phase, begun), event, around in itertools.product(states, Event, flags):
            if event is Event.BACKWARD_END and phase is not Phase.BACKWARD:
                continue
            found = decide(phase, event, around)
            for action in found.actions:
                if action is Action.BEGIN:
                    assert not begun
                    begun = True
                elif action in (Action.END, Action.ROLL_BACK):
                    assert begun
                    begun = False
            assert begun == (found.phase is not Phase.IDLE)
            after.add((found.phase, begun))
        states |= after
