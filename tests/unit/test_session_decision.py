"""The decision on a step of several servers: every combination of their answers."""

from __future__ import annotations

import itertools
import math

import pytest

from luwu.core.protocols import COMMITTED, NOT_FINITE, PREPARED, ROLLED_BACK, VOID
from luwu.session.decision import Decision, decide

ENDS = (ROLLED_BACK, PREPARED, NOT_FINITE, VOID)


def test_a_server_alone_has_decided_already() -> None:
    for end in (ROLLED_BACK, COMMITTED, NOT_FINITE, VOID):
        assert decide([end], [None]) == Decision(end, end == COMMITTED, None)


@pytest.mark.parametrize("ends", list(itertools.product(ENDS, repeat=3)))
def test_a_step_is_committed_where_all_have_prepared_it(ends: tuple[int, ...]) -> None:
    found = decide(ends, [None] * 3)
    assert found.commits == (set(ends) == {PREPARED})
    worst = next((end for end in (VOID, NOT_FINITE, ROLLED_BACK) if end in ends), COMMITTED)
    assert found.end == worst


def test_squares_are_known_where_all_servers_know_theirs_or_one_says_that_there_is_no_number() -> None:
    prepared = [PREPARED, PREPARED]
    assert decide(prepared, [1.5, 2.0]).squares == 3.5
    assert decide(prepared, [1.5, None]).squares is None
    assert math.isnan(decide([PREPARED, NOT_FINITE], [None, math.nan]).squares or 0.0)
