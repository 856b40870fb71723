"""The decision on a step of several servers: every combination of their answers."""

from __future__ import annotations

import itertools
import math

import pytest

from luwu.core.protocols import COMMITTED, NOT_FINITE, PREPARED, ROLLED_BACK, VOID
from luwu.session.decision import Decision, behind, decide, wait_for_decision

ENDS = (ROLLED_BACK, PREPARED, NOT_FINITE, VOID)


def test_a_server_alone_has_decided_already() -> None:
    for end in (ROLLED_BACK, COMMITTED, NOT_FINITE, VOID):
        assert decide([end], [None]) == Decision(end, None)
        assert not wait_for_decision([end])


@pytest.mark.parametrize("ends", list(itertools.product(ENDS, repeat=3)))
def test_a_step_is_committed_where_all_have_prepared_it(ends: tuple[int, ...]) -> None:
    found = decide(ends, [None] * 3)
    assert found.commits == (set(ends) == {PREPARED})
    worst = next((end for end in (VOID, NOT_FINITE, ROLLED_BACK) if end in ends), COMMITTED)
    assert found.end == worst
    assert found.annuls == (VOID in ends)
    assert wait_for_decision(ends) == [server for server in range(3) if ends[server] != VOID]


def test_squares_are_known_where_all_servers_know_theirs_or_one_says_that_there_is_no_number() -> None:
    prepared = [PREPARED, PREPARED]
    assert decide(prepared, [1.5, 2.0]).squares == 3.5
    assert decide(prepared, [1.5, None]).squares is None
    assert math.isnan(decide([PREPARED, NOT_FINITE], [None, math.nan]).squares or 0.0)


def test_servers_that_are_in_an_earlier_attempt_than_another_are_behind() -> None:
    assert behind([4]) == behind([4, 4, 4]) == []
    assert behind([4, 5, 4]) == [0, 2]
    assert behind([3, 4, 5]) == [0, 1]
