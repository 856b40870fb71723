"""Log of a run's state: its steps, or the participants that it waits for."""

from __future__ import annotations

import logging

from luwu.control.timeouts import PATIENCE_SECONDS
from luwu.control.waiting import until
from luwu.core.words import counted
from luwu.server.run import Run

log = logging.getLogger(__name__)


class Status:
    """Logs a run's status every ``interval_seconds``, and, soon after a wait begins, the participants that are missing.

    Args:
        interval_seconds: time between two lines.
        gather_seconds: the longest time that a run waits for its workers and switches.
    """

    def __init__(self, interval_seconds: float, gather_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._gather_seconds = gather_seconds
        self._waits_since: float | None = None
        self._waits_said = False
        self._said_at = 0.0
        self._job = -1
        self._failure = ""  # failure of the last snapshot that was due
        self._step: int | None = None  # at the last look; None before the store was open

    def look(self, run: Run, now: float, missing_switches: int = 0) -> None:
        """Log the run's status if it is time.

        Args:
            run: the present run.
            now: time of the monotonic clock, in seconds.
            missing_switches: number of switches that must still join before the run begins.
        """
        if run.job != self._job:
            self._job, self._step, self._said_at = run.job, None, now
            self._waits_since = None
        waits_for = [f"worker {rank}" for rank in run.missing]
        if missing_switches:
            waits_for.append(counted(missing_switches, "switch", "switches"))
        if run.begun or not run.joined or not waits_for:
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since, self._waits_said = now, False
        elif not self._waits_said and now - self._waits_since >= PATIENCE_SECONDS:
            self._waits_said, self._said_at = True, now
            self._say_waiting(run, waits_for, now)
            return
        elapsed = now - self._said_at
        if elapsed < self._interval_seconds:
            return
        self._said_at = now
        failure = run.stats().get("snapshot_failure", "")
        if failure and failure != self._failure:
            log.warning("job=%x %s", run.job, failure)
        self._failure = failure
        before, self._step = self._step, run.step if run.opened else None
        if self._waits_since is not None:
            self._say_waiting(run, waits_for, now)
        elif self._step is not None:
            stats = run.stats()
            log.info(
                "committed job=%x step=%d attempts=%d rolled_back=%d%s",
                run.job,
                self._step,
                stats["attempts"],
                stats["rolled_back"],
                "" if before is None else f" steps_per_second={(self._step - before) / elapsed:.3g}",
            )

    def _say_waiting(self, run: Run, waits_for: list[str], now: float) -> None:
        assert self._waits_since is not None
        left = max(0.0, self._waits_since + self._gather_seconds - now)
        log.info("waiting job=%x for=%s %s", run.job, ",".join(waits_for), until(round(left)))
