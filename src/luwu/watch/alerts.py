"""Alerts of a run, from the file that `luwu train` writes them to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from luwu.launch.run_paths import RunPaths
from luwu.observe.alerts import FAILED, STARTED, standing_words
from luwu.watch.logs import Line
from luwu.watch.tails import Tail

SOURCE = "alerts"

_LATEST = 2**38
"""A time that is later has no date, and is that of a damaged line."""


class AlertFile:
    """The alerts of a run folder, of which those since the run's last start stand until they are cleared.

    The order of lines tells that, as a copy of the folder has other times, and clocks are set. Files of earlier
    versions have no lines for starts: there job.json is as old as the last one.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._tail = Tail(paths.alerts_path)
        self._job_path = paths.job_path
        self._has_starts = False
        self._started = 0.0  # time of job.json
        self._standing: dict[str, dict[str, Any]] = {}

    @property
    def standing(self) -> dict[str, str]:
        """Texts of the alerts that are raised, by name, which say since when: their figures are as old."""
        return {name: standing_words(name, alert["text"], alert["step"]) for name, alert in self._standing.items()}

    @property
    def failed_at(self) -> float | None:
        """The time at which the run failed, in seconds since the epoch; None: it has not since its last start."""
        return self._standing[FAILED]["time"] if FAILED in self._standing else None

    def refresh(self) -> list[Line]:
        """Read what has been written since the last call, and return it as lines of a log."""
        self._notice_start()
        return [line for lines in iter(self._tail.lines, []) for each in lines for line in self._take(each)]

    def _notice_start(self) -> None:
        if self._has_starts:
            return
        try:
            started = self._job_path.stat().st_mtime
        except OSError:
            return
        if started != self._started:
            self._started = started
            self._standing.clear()

    def _take(self, line: bytes) -> Iterator[Line]:
        alert = _alert_of(line)
        if alert is None:
            return
        raised = alert["state"] == "raised"
        if alert["state"] == STARTED:
            self._has_starts = True
            self._standing.clear()
        elif not raised:
            self._standing.pop(alert["name"], None)
        elif self._has_starts or alert["time"] >= self._started:
            self._standing[alert["name"]] = alert
        yield Line(
            SOURCE, "warning" if raised else "info", f"{alert['state']} at step {alert['step']}: {alert['text']}"
        )


def _alert_of(line: bytes) -> dict[str, Any] | None:
    """Return the alert, or the start, of a line; None: it has none."""
    try:
        alert = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(alert, dict) or not {"name", "state", "text", "step", "time"} <= alert.keys():
        return None
    texts = all(isinstance(alert[name], str) for name in ("name", "state", "text"))
    timed = isinstance(alert["time"], int | float) and 0 <= alert["time"] < _LATEST
    return alert if texts and timed and isinstance(alert["step"], int) else None
