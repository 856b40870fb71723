"""The alerts of a `luwu train`: they are looked for, and go to the display, to a file and to `--on-alert`."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from luwu.core.room import RoomWait, append_line
from luwu.launch.folder import RunFolder
from luwu.launch.on_alert import OnAlertCalls
from luwu.launch.settings import Settings
from luwu.observe.alerts import MEANINGS, STARTED, Alerts, Change, standing_words
from luwu.observe.display import Display
from luwu.observe.meter import StepRecord

LOOK_SECONDS = 1.0
DISK_SECONDS = 10.0
"""Seconds between two looks at what no attempt tells of."""


class WatchedServer(Protocol):
    """The server of a run, as alerts see it."""

    def stats(self) -> dict[str, Any]:
        """Counts of the server; empty: nobody knows them here."""

    def behind(self) -> dict[str, float]:
        """Seconds that others have waited for each worker, by rank."""

    def note_wait(self, wait: RoomWait | None) -> None:
        """Note a pause because the disk of the run folder is full, for whoever asks the server; None: it is over."""


class RunAlerts:
    """Watches a run, and tells of each alert once that it is raised, and once that it is cleared.

    Args:
        settings: of the run.
        folder: the run's folder.
        display: shows the run to the user.
        server: returns the run's server.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        display: Display,
        server: Callable[[], WatchedServer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._display, self._server, self._clock = folder, display, server, clock
        self._alerts = Alerts(settings.run.commit_points)
        self._calls = OnAlertCalls(settings.run.on_alert)
        self._folders = [folder.path, *folder.stores(settings)]
        self._looked_at = self._looked_at_disks = clock()
        self._step = 0
        self._since: dict[str, int] = {}  # steps at which alerts were raised, by name
        self._said_failure = self._noted_start = False

    def standing(self) -> dict[str, float]:
        """Return 1 for each alert that is raised, and 0 for the others, by name; any thread may call it."""
        return {name: float(name in self._alerts.standing) for name in MEANINGS}

    def begin(self, step: int) -> None:
        """Note in the file that the run has begun to train, after a step: what was raised before stands no more."""
        self._step = step
        self._note_start()

    def attempt(self, record: StepRecord) -> None:
        """Take an attempt's record."""
        self._step = record.step
        self._tell(self._alerts.attempt(record))

    def validated(self, step: int, loss: float) -> None:
        """Take a validation loss that was measured after its step's record."""
        self._tell(self._alerts.validated(step, loss))

    def failed(self, step: int, why: str) -> None:
        """Take the end of a run that has failed; the start that it ends was noted."""
        self._step, self._noted_start = step, True
        self._tell(self._alerts.failed(step, why))

    def look(self, *, training: bool) -> None:
        """Look, if it is time, at workers, disks and the last durable step.

        Args:
            training: steps are being made.
        """
        if (now := self._clock()) - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        if training:
            server = self._server()
            self._tell(self._alerts.behind(now, server.behind()))
            stats = server.stats()
            if "since_commit_seconds" in stats:
                self._tell(self._alerts.durable(stats["since_commit_seconds"], stats["unwritten"]))
            if now - self._looked_at_disks >= DISK_SECONDS:
                self.look_at_disks()
        if self._calls.failure and not self._said_failure:
            self._said_failure = True
            self._display.say(self._calls.failure)

    def close(self) -> None:
        """Wait for what is still to be told to `--on-alert`."""
        self._calls.close()
        self._looked_at = -LOOK_SECONDS
        self.look(training=False)

    def look_at_disks(self) -> None:
        """Look at the disks of the run now, as where one of them is full and nothing else can be looked at."""
        now = self._looked_at_disks = self._clock()
        for folder in one_of_each_disk(self._folders):
            with suppress(OSError):
                disk = shutil.disk_usage(folder)
                self._tell(self._alerts.disk(str(folder), now, disk.free, disk.total))

    def _tell(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._note_start()
            self._display.say(f"alert {change.state}: {change.text}")
            words = self._words(change.name, change.state, change.text)
            append_line(self._folder.alerts_path, json.dumps(words))
            self._calls.tell(words)
            if change.raised:
                self._since[change.name] = self._step
            standing = self._alerts.standing.items()
            self._display.alerts({name: standing_words(name, text, self._since[name]) for name, text in standing})

    def _note_start(self) -> None:
        if not self._noted_start:
            words = self._words("run_started", STARTED, "the run has started")
            self._noted_start = append_line(self._folder.alerts_path, json.dumps(words))

    def _words(self, name: str, state: str, text: str) -> dict[str, Any]:
        return {
            "name": name,
            "state": state,
            "text": text,
            "run": self._folder.path.name,
            "folder": str(self._folder.path),
            "step": self._step,
            "time": time.time(),
            "host": socket.gethostname(),
        }


def one_of_each_disk(folders: Iterable[Path]) -> list[Path]:
    """Return the first of the folders on each disk; those that do not exist are on none."""
    found: dict[int, Path] = {}
    for folder in folders:
        with suppress(OSError):
            found.setdefault(folder.stat().st_dev, folder)
    return list(found.values())
