"""Whether the workers of a run that has failed join again."""

from __future__ import annotations

import pytest

from luwu.errors import ServerError
from luwu.launch.job import EXIT_FAILED, EXIT_SERVER_LOST
from luwu.launch.processes import Ended
from luwu.launch.restarts import Restarts
from luwu.launch.returning import Returning

LOST, BROKEN, KILLED = EXIT_SERVER_LOST, EXIT_FAILED, -9
ERROR = ServerError("the server ended")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def ended(*statuses):
    return [Ended(rank, status) for rank, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("seconds", "restarts", "statuses", "joins"),
    [
        (10, 0, (LOST, LOST), True),
        (10, 0, (LOST,), True),
        (0, 0, (LOST, LOST), False),  # the user does not want to wait
        (10, 3, (), False),  # asked to stop, or failed before it had workers
        (10, 3, (LOST, BROKEN), False),  # an error of a worker is in its program
        (10, 3, (KILLED, BROKEN), False),
        (10, 0, (LOST, KILLED), False),
        (0, 1, (LOST, KILLED), True),
        (0, 1, (KILLED, KILLED), False),
        (0, 2, (KILLED, KILLED), True),
    ],
)
def test_losses_from_elsewhere_are_borne(seconds, restarts, statuses, joins):
    returning = Returning(seconds, Restarts(restarts), Clock())
    word = returning.lose(ended(*statuses), ERROR, committed=False)
    assert word.startswith("the server ended; ") if joins else word == ""


def test_time_begins_with_the_first_loss_since_a_commit():
    clock = Clock()
    returning = Returning(10, Restarts(0), clock)
    assert "until" in returning.lose(ended(LOST), ERROR, committed=False)
    assert returning.connect_seconds == 10
    clock.now += 6
    assert returning.lose(ended(LOST), ERROR, committed=False)
    assert returning.connect_seconds == 4
    clock.now += 3
    assert returning.lose(ended(LOST), ERROR, committed=True)
    assert returning.connect_seconds == 10
    clock.now += 10
    assert returning.lose(ended(LOST), ERROR, committed=False) == ""


def test_restarts_are_those_of_the_whole_run():
    returning = Returning(10, Restarts(2), Clock())
    for joins in (True, True, False):
        assert bool(returning.lose(ended(KILLED, LOST), ERROR, committed=True)) == joins
    assert returning.connect_seconds is None  # the server is there
