"""Rules of the processes around the machines. Each class breaks one of them, and some history must notice it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from harness.jobs.reference import Counts
from harness.jobs.world import Rules
from luwu.core.division import Share, Standing
from luwu.core.protocols import COMMITTED, NOT_FINITE, PREPARED, ROLLED_BACK, VOID
from luwu.server.admission import Admission
from luwu.session.decision import Decision


class _CommitsWithSome(Rules):
    """A step is committed where some servers have prepared it."""

    def decide(self, ends: Sequence[int], squares: Sequence[float | None]) -> Decision:
        found = super().decide(ends, squares)
        return Decision(COMMITTED, found.squares) if PREPARED in ends else found


class _CountsSquaresTwice(Rules):
    """A step is clipped by another norm than that of the whole gradient."""

    def decide(self, ends: Sequence[int], squares: Sequence[float | None]) -> Decision:
        found = super().decide(ends, squares)
        return found if found.squares is None else found._replace(squares=2 * found.squares)


class _SaysRolledBack(Rules):
    """A step whose gradient is not finite counts as one that a worker gave up."""

    def decide(self, ends: Sequence[int], squares: Sequence[float | None]) -> Decision:
        found = super().decide(ends, squares)
        return found._replace(end=ROLLED_BACK) if found.end == NOT_FINITE else found


class _OpensAtTheNewest(Rules):
    """Each server opens its store at its newest step, which the others may not have."""

    def share_out(self, standings: Sequence[Standing], urls: Sequence[str]) -> list[Share]:
        return [Share(len(standings), standing.uuid, standing.steps[0]) for standing in standings]


class _OpensAtTheOldest(Rules):
    """Every server opens its store at the oldest of their newest steps, which one that is ahead may not have."""

    def share_out(self, standings: Sequence[Standing], urls: Sequence[str]) -> list[Share]:
        step = min(standing.steps[0] for standing in standings)
        return [Share(len(standings), standing.uuid, step) for standing in standings]


class _ForgetsAttempts(Rules):
    """A worker that joins counts only committed steps, so it uses samples twice."""

    def counts_at_join(self, counts: Counts) -> Counts:
        return Counts(counts.step, counts.step, 0)


class _TakesPlacesAtOnce(Rules):
    """A worker comes to a place before the end of the attempt that the one before was in."""

    def place_is_free(self, machine: Any, rank: int) -> bool:
        return True


class _KeepsPushes(Rules):
    """Pushes of a worker that arrive after its loss are still taken."""

    def drop_pushes(self, pushes: deque[tuple[int, int]]) -> None:
        pass


class _TellsNoLoss(Rules):
    """The machine does not hear of a lost worker."""

    def lose(self, machine: Any, rank: int) -> list[tuple[Any, ...]]:
        return []


class _GoesOnUndecided(Rules):
    """A worker begins the next step before all servers know the decision on the last one."""

    waits_for_decides = False


class _TellsNoVoidAttempt(Rules):
    """Workers do not hear of a void attempt before they have voted on it."""

    tells_void_attempts = False


class _BeginsApart(Rules):
    """A worker that joins is in an earlier attempt at one server than at another."""

    def behind(self, ended: Sequence[int]) -> list[int]:
        return []


class _CountsVoidAttempts(Rules):
    """An attempt is void at one server, and another counts it as rolled back."""

    def decide(self, ends: Sequence[int], squares: Sequence[float | None]) -> Decision:
        found = super().decide(ends, squares)
        return Decision(ROLLED_BACK, None) if VOID in ends and {ROLLED_BACK, NOT_FINITE} & set(ends) else found


class _LivesOnAlone(Rules):
    """A run goes on when another server of its job has begun a new one."""

    runs_end_together = False


class _GathersAgain(Rules):
    """A worker that comes for a lost one waits for all others, as at the begin of a run."""

    gathers_again = True


class _AnswersBeforeTheSync(Rules):
    """A commit is answered before its record is durable."""

    syncs_records = False


class _ClosesWithoutFlush(Rules):
    """A store is closed without the steps that are in memory alone."""

    flushes = False


BROKEN: Mapping[str, type[Rules]] = {
    (found.__doc__ or "").rstrip("."): found
    for found in (
        _CommitsWithSome, _CountsSquaresTwice, _SaysRolledBack, _OpensAtTheNewest, _OpensAtTheOldest,
        _ForgetsAttempts,
        _TakesPlacesAtOnce, _KeepsPushes, _TellsNoLoss, _GoesOnUndecided, _TellsNoVoidAttempt,
        _BeginsApart,
        _CountsVoidAttempts, _LivesOnAlone, _GathersAgain, _AnswersBeforeTheSync, _ClosesWithoutFlush,
    )
}  # fmt: skip


LATE_CALLS = "Late calls of a lost worker count for the one in its place"


@contextmanager
def late_calls_count() -> Iterator[None]:
    """Context manager: break the rule of `LATE_CALLS`, which the machine of places keeps."""
    with patch.object(Admission, "holds", lambda self, rank, tenure: rank in self.joined):
        yield
