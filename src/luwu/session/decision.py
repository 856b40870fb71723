"""The decision on a step that several servers have ended: all of them commit it, or none. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from luwu.core.protocols import COMMITTED, NOT_FINITE, PREPARED, ROLLED_BACK, VOID


class Decision(NamedTuple):
    """A decision that every worker makes alike, because all get the same answers.

    Attributes:
        end: end of the step, once every server that has prepared it knows the decision.
        commits: what these servers are told.
        squares: with clipping, the sum of squares of the gradient over all servers; None where it is not known.
    """

    end: int
    commits: bool
    squares: float | None


def decide(ends: Sequence[int], squares: Sequence[float | None]) -> Decision:
    """Return the decision on a step, from the servers' answers in their order.

    Args:
        ends: end of the step at each server; prepared: it waits for the decision.
        squares: with clipping, the sum of squares of each server's part of the gradient.
    """
    found = [value for value in squares if value is not None]
    known = len(found) == len(ends) or any(math.isnan(value) for value in found)
    total = sum(found) if known else None  # in the servers' order, so that all workers say the same
    if all(end == PREPARED for end in ends) or all(end == COMMITTED for end in ends):
        return Decision(COMMITTED, True, total)
    if VOID in ends:
        return Decision(VOID, False, total)
    # A worker that gave the step up told every server; a gradient that is not finite is known to one alone.
    return Decision(NOT_FINITE if NOT_FINITE in ends else ROLLED_BACK, False, total)
