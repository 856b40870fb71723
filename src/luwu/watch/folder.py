"""The files of a run folder as `luwu watch` follows them: rows, settings, logs and alerts."""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from luwu.control.frames import SOCKET_NAME
from luwu.core.errors import LuwuError
from luwu.launch.first_counts import first_counts_in
from luwu.launch.on_alert import without_private
from luwu.launch.run_paths import RunPaths
from luwu.launch.written import read_written
from luwu.observe.binding import RECENT
from luwu.observe.metrics import row_of
from luwu.watch.alerts import AlertFile
from luwu.watch.columns import Columns
from luwu.watch.logs import Logs
from luwu.watch.tails import Tail

FRESH_SECONDS = 60.0
"""A run whose server is elsewhere counts as under way while its last row is younger."""


READS = 4
"""Reads of metrics.jsonl, of `READ_BYTES` each, that one `WatchedFolder.refresh` makes: some tenths of a second."""


class WatchedFolder:
    """A run folder.

    Attributes:
        columns: rows of metrics.jsonl.
        reading: share of that file that has been read, while it is longer than one `refresh` reads; else None.
        restarts: number of times that metrics.jsonl was found to be another file.
        recent: its last 20 rows, and the one before them, from which their bytes are counted.
        logs: lines of its logs, alerts among them.
        alerts: alerts, those that stand.
        settings: its settings by ``table.name``.
        stores: folders of its store, where that is on this machine.
    """

    def __init__(self, path: Path) -> None:
        self._paths = RunPaths(path)
        self._rows = Tail(self._paths.metrics_path)
        self._settings_of = 0.0  # time of the file that they were read from
        self.columns = Columns()
        self.reading: float | None = None
        self.restarts = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT + 1)
        self.logs = Logs(path)
        self.alerts = AlertFile(self._paths)
        self.settings: dict[str, Any] = {}
        self.stores = [self._paths.path / "store"]

    def refresh(self) -> None:
        """Read what is new, of a long metrics.jsonl a piece; raises OSError for a file, once the others are read."""
        errors: list[OSError] = []
        for read in (self._read_rows, self.logs.refresh, self._read_alerts, self._read_settings):
            try:
                read()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def seems_live(self) -> bool:
        """Return True where a server answers at the folder's socket, or where a row was written a moment ago."""
        with closing(socket.socket(socket.AF_UNIX)) as asking:
            asking.setblocking(False)
            try:
                asking.connect(str(self._paths.path / SOCKET_NAME))
                return True
            except BlockingIOError:  # a server that is stopped, to whom as many talk already as may
                return True
            except OSError:  # also of a path that is too long for a socket
                pass
        written = self.written_at()
        return written is not None and time.time() - written < FRESH_SECONDS

    def written_at(self) -> float | None:
        """Return the time at which its last row was written, in seconds since the epoch; None: there is no file."""
        try:
            return self._paths.metrics_path.stat().st_mtime
        except OSError:
            return None

    def written(self) -> int:
        """Return the bytes that the run has written to its store, as they were saved; 0: nobody knows."""
        return read_written(self._paths.written_path)

    def first_step(self, store_step: int) -> int:
        """Return the store's step at which the run began in it; 0 where nobody says that it began later.

        A store on another machine does not tell here: then the run's last row is taken to be of the store's present
        step, which is off by no more than the step that is being reported.

        Args:
            store_step: the store's present step.
        """
        try:
            first = first_counts_in(self._paths, self.stores[0])
        except (LuwuError, OSError, ValueError):  # not a run of `luwu train`, or damaged, which its own start says
            return 0
        if first is not None:
            return first.step
        if self.reading is not None:
            return 0
        steps = (row["step"] for row in reversed(self.recent) if row["step"] is not None)
        return max(0, store_step - next(steps, 0))

    def _read_rows(self) -> None:
        self.reading = None  # also where it cannot be read
        for _ in range(READS):
            lines = self._rows.lines()
            self._notice_restart()
            if not lines and self._rows.read_share == 1.0:
                return
            for line in lines:
                row = row_of(line)
                if row is not None:
                    self.columns.append(row)
                    self.recent.append(row)
        self.reading = self._rows.read_share

    def _read_alerts(self) -> None:
        for alert in self.alerts.refresh():
            self.logs.add(alert)

    def _notice_restart(self) -> None:
        if self._rows.restarts != self.restarts:
            self.restarts, self.columns = self._rows.restarts, Columns()
            self.recent.clear()

    def _read_settings(self) -> None:
        try:
            written = self._paths.config_path.stat().st_mtime
            if written == self._settings_of:
                return
            tables = self._paths.saved_settings() or {}
        except (LuwuError, OSError):  # there is none, or it is damaged, which the run's own start says
            return
        self._settings_of, self.settings = written, without_private(flat(tables))
        self.stores = self._paths.stores_in(tables)


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of tables by ``table.name``; as text, what JSON has no word for."""
    return {
        f"{table}.{name}": value if isinstance(value, int | str) or _is_finite(value) else str(value)
        for table, values in tables.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
    }
