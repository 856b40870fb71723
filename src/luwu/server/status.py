"""Says in the log now and then how far a run is, or whom it waits for."""

from __future__ import annotations

import logging

from luwu.server.run import Run

log = logging.getLogger(__name__)


class Status:
    """Logs every ``interval_seconds`` while there is something to say."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._said_at = 0.0
        self._job = -1
        self._failure = ""  # of the last snapshot that was due
        self._step: int | None = None  # at the last look; None before the store was open

    def look(self, run: Run, now: float) -> None:
        """Log the run's status if it is time; ``now`` is of the monotonic clock, in seconds."""
        if run.job != self._job:
            self._job, self._step, self._said_at = run.job, None, now
        elapsed = now - self._said_at
        if elapsed < self._interval_seconds:
            return
        self._said_at = now
        failure = run.stats().get("snapshot_failure", "")
        if failure and failure != self._failure:
            log.warning("job=%x %s", run.job, failure)
        self._failure = failure
        before, self._step = self._step, run.step if run.opened else None
        if run.joined and run.missing:
            log.info("waiting job=%x for=%s", run.job, ",".join(f"worker {rank}" for rank in run.missing))
        elif self._step is not None:
            stats = run.stats()
            log.info(
                "committed job=%x step=%d attempts=%d rolled_back=%d steps_per_second=%.3g",
                run.job,
                self._step,
                stats["attempts"],
                stats["rolled_back"],
                0.0 if before is None else (self._step - before) / elapsed,
            )
