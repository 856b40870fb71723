"""Alerts of a run, from the file that `luwu train` writes them to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from luwu.launch.run_paths import RunPaths
from luwu.watch.logs import Line
from luwu.watch.tails import Tail

SOURCE = "alerts"


class AlertFile:
    """The alerts of a run folder.

    Attributes:
        standing: texts of the alerts that are raised, by name.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._tail = Tail(paths.alerts_path)
        self._job_path = paths.job_path
        self._started = 0.0
        self.standing: dict[str, str] = {}

    def refresh(self) -> list[Line]:
        """Read what has been written since the last call, and return it as lines of a log."""
        self._notice_start()
        return [line for lines in iter(self._tail.lines, []) for each in lines for line in self._take(each)]

    def _notice_start(self) -> None:
        """Forget what was raised before the run was started last: a start begins without alerts."""
        try:
            started = self._job_path.stat().st_mtime
        except OSError:
            return
        if started != self._started:
            self._started = started
            self.standing.clear()

    def _take(self, line: bytes) -> Iterator[Line]:
        alert = _alert_of(line)
        if alert is None:
            return
        raised = alert["state"] == "raised"
        if not raised:
            self.standing.pop(alert["name"], None)
        elif alert["time"] >= self._started:
            self.standing[alert["name"]] = alert["text"]
        yield Line(
            SOURCE, "warning" if raised else "info", f"{alert['state']} at step {alert['step']}: {alert['text']}"
        )


def _alert_of(line: bytes) -> dict[str, Any] | None:
    """Return the alert of a line; None: it has none."""
    try:
        alert = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(alert, dict) or not {"name", "state", "text", "step", "time"} <= alert.keys():
        return None
    texts = all(isinstance(alert[name], str) for name in ("name", "state", "text"))
    return alert if texts and isinstance(alert["time"], int | float) and isinstance(alert["step"], int) else None
