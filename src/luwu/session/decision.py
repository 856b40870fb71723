"""The decision on an attempt that several servers have ended: all of them commit it, or none. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from luwu.core.errors import ServerError
from luwu.core.protocols import COMMITTED, NOT_FINITE, PREPARED, ROLLED_BACK, VOID

_NAMES = {COMMITTED: "committed", NOT_FINITE: "rolled back", ROLLED_BACK: "rolled back", VOID: "void"}


class Decision(NamedTuple):
    """A decision that every worker makes alike, because all get the same answers.

    Attributes:
        end: end of the attempt, once every server that waits for the decision knows it.
        squares: with clipping, the sum of squares of the gradient over all servers; None where it is not known.
    """

    end: int
    squares: float | None

    @property
    def commits(self) -> bool:
        """True where the servers commit the step."""
        return self.end == COMMITTED

    @property
    def annuls(self) -> bool:
        """True where the attempt is void at all servers."""
        return self.end == VOID


def decide(ends: Sequence[int], squares: Sequence[float | None]) -> Decision:
    """Return the decision on an attempt, from the servers' answers in their order.

    Args:
        ends: end of the attempt at each server; prepared: it waits for the decision.
        squares: with clipping, the sum of squares of each server's part of the gradient.
    """
    found = [value for value in squares if value is not None]
    known = len(found) == len(ends) or any(math.isnan(value) for value in found)
    total = sum(found) if known else None  # in the servers' order, so that all workers say the same
    if all(end in (PREPARED, COMMITTED) for end in ends):
        return Decision(COMMITTED, total)
    if VOID in ends:
        return Decision(VOID, total)
    # A worker that gave the step up told every server; a gradient that is not finite is known to one alone.
    return Decision(NOT_FINITE if NOT_FINITE in ends else ROLLED_BACK, total)


def wait_for_decision(ends: Sequence[int]) -> list[int]:
    """Return the numbers of the servers that must be told the decision, in their order.

    A single server's answer is the end. One of several leaves it open as long as it does not void the attempt: a void
    attempt does not count, so it must be void at all servers or at none.
    """
    return [server for server, end in enumerate(ends) if end != VOID] if len(ends) > 1 else []


def check_ended_alike(decision: Decision, ended: Sequence[tuple[str, int]]) -> None:
    """Check how servers have ended an attempt that they were told the decision on, by the end at each server's URL.

    Raises:
        ServerError: one of them had ended it otherwise, because another worker told it so. Its store now lacks a step
            that the others have, or has one that they lack.
    """
    for url, end in ended:
        if (end == COMMITTED, end == VOID) != (decision.commits, decision.annuls):
            raise ServerError(
                f"the server at {url} did not end the last attempt as the others have: expected "
                f"{_NAMES[decision.end]}, found {_NAMES[end]}; run again to resume from the last step that all have"
            )


def behind(ended: Sequence[int]) -> list[int]:
    """Return the numbers of the servers that are in an earlier attempt than another one, in their order.

    Only a worker that has just joined sees servers apart: the others have not told the servers behind yet that the
    attempt there is void. None of them can commit it.

    Args:
        ended: number of attempts that have ended, void ones too, at each server.
    """
    return [server for server, count in enumerate(ended) if count < max(ended)]
