"""Restarts of workers, and whether those of a run that has failed join again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from luwu.core.exits import Exit
from luwu.launch.processes import Ended, ended_from_outside
from luwu.launch.restarts import Restarts
from luwu.launch.returning import Returning

LOST, BROKEN, KILLED = Exit.SERVER_LOST, Exit.FAILED, -9


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def ended(*statuses):
    return [Ended(rank, status) for rank, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("statuses", "borne"),
    [
        ((LOST, LOST), True),
        ((LOST,), True),
        ((LOST, KILLED), True),
        ((), False),  # it failed before it had workers
        ((LOST, BROKEN), False),  # an error of a worker is in its program
        ((KILLED, BROKEN), False),
    ],
)
def test_losses_from_elsewhere_are_told_from_errors_of_workers(statuses, borne):
    assert ended_from_outside(ended(*statuses)) == borne


@pytest.mark.parametrize(
    ("seconds", "restarts", "statuses", "joins"),
    [
        (10, 0, (LOST, LOST), True),
        (0, 0, (LOST, LOST), False),  # the user does not want to wait
        (10, 0, (LOST, KILLED), False),
        (0, 1, (LOST, KILLED), True),
        (0, 1, (KILLED, KILLED), False),
        (0, 2, (KILLED, KILLED), True),
    ],
)
def test_losses_from_elsewhere_are_borne(seconds, restarts, statuses, joins):
    word = Returning(seconds, Restarts(restarts), Clock()).lose(ended(*statuses), 7, committed=False)
    assert "step 7" in word if joins else word == ""


def test_time_begins_with_the_first_loss_since_a_commit():
    clock = Clock()
    returning = Returning(10, Restarts(0), clock)
    assert "until" in returning.lose(ended(LOST), 7, committed=False)
    assert returning.connect_seconds == 10
    clock.now += 6
    assert returning.lose(ended(LOST), 7, committed=False)
    assert returning.connect_seconds == 4
    clock.now += 3
    assert returning.lose(ended(LOST), 8, committed=True)
    assert returning.connect_seconds == 10
    clock.now += 10
    assert returning.lose(ended(LOST), 8, committed=False) == ""


def test_restarts_are_those_of_the_whole_run():
    returning = Returning(10, Restarts(2), Clock())
    for joins in (True, True, False):
        assert bool(returning.lose(ended(KILLED, LOST), 7, committed=True)) == joins
    assert returning.connect_seconds is None  # the server is there


def test_a_worker_is_killed_once_for_each_end_of_its_session():
    killed = []
    workers = SimpleNamespace(kill_one=killed.append, failed=list)
    restarts = Restarts(3)
    for _ in range(2):  # of two other workers
        restarts.note_fenced(1)
    said = list(restarts.look(workers, may_start=True))
    assert (killed, said) == ([1], ["the server has ended the session of worker 1; it is killed"])
    restarts.note_start(1)
    restarts.note_fenced(1)
    assert len(list(restarts.look(workers, may_start=True))) == 1
    assert killed == [1, 1]
