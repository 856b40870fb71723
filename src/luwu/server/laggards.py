"""Workers of a run that the others wait for: news of them, and those whose time is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from luwu.server.description import pause_of
from luwu.server.membership import Membership
from luwu.server.progress import Laggard, LaggardWatch


class Patience(NamedTuple):
    """Patience of a run on one machine with its workers.

    ``return_seconds``: it waits this long for another worker at the place of a lost one; 0: it fails.
    ``deadline_seconds``: a worker that others wait for and that makes no progress for this long is overdue; 0: none is.
    ``on_overdue`` is called once with its rank and a sentence, in a thread of the server. Whoever started the worker
    ends it: only then nobody writes to the memory that the next one at its place shares.
    ``another_comes`` tells whether another is started in the place of a worker that is lost now; if not, the run fails.
    """

    return_seconds: float = 0.0
    deadline_seconds: float = 0.0
    on_overdue: Callable[[int, str], None] = lambda rank, text: None
    another_comes: Callable[[], bool] = lambda: True


NO_PATIENCE = Patience()


def look_for_laggards(run: Membership[Any], watch: LaggardWatch) -> list[str]:
    """Let a watch look at the workers' progress, and return its news; none while no steps can be made."""
    stats = _while_it_runs(run)
    return run.progress.look(watch, stats["step"], stats["attempts"]) if stats else []


def overdue(run: Membership[Any], seconds: float) -> list[Laggard]:
    """Return the workers that others wait for and that have made no progress for this long; 0: none."""
    stats = _while_it_runs(run) if seconds else {}
    return run.progress.overdue(stats["attempts"], seconds) if stats else []


def why_overdue(laggard: Laggard, seconds: float) -> str:
    """Say why a worker counts as lost although its session has not ended."""
    return f"has made no progress for {laggard.seconds:.0f} s (step_deadline_seconds is {seconds:g})"


def _while_it_runs(run: Membership[Any]) -> dict[str, Any]:
    """Return the server's counts; none where the run has ended, or waits for room on a full disk."""
    stats = run.stats()
    pauses = not stats or pause_of(run) is not None
    return {} if pauses or run.error() is not None else stats
