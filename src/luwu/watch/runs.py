"""A run as `luwu watch` follows it: the files of its folder, and the status of its server."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from luwu.control.address import SCHEME
from luwu.control.credentials import Credentials
from luwu.control.frames import SOCKET_NAME
from luwu.core.errors import ConfigError, LuwuError
from luwu.launch.asking import ask_run
from luwu.launch.run_paths import RunPaths
from luwu.observe.binding import RECENT, binding_sentence
from luwu.observe.metrics import row_of
from luwu.watch.alerts import AlertFile
from luwu.watch.columns import Columns
from luwu.watch.disks import look_at_disks
from luwu.watch.logs import Logs
from luwu.watch.state import Sample, run_record
from luwu.watch.tails import Tail

MOST_POINTS = 3000
"""Rows of a run that a page gets at once; longer runs are thinned."""

LOOK_SECONDS = 1.0
"""Time between two looks at a run that somebody watches."""


@dataclass(frozen=True)
class Cursor:
    """Everything that a page has got of a run: rows of which reading of the file, lines of logs, names of blocks."""

    restarts: int = -1
    rows: int = 0
    lines: int = 0
    names: tuple[str, ...] | None = None


class WatchedRun:
    """A run, by its folder or by its server's URL. `refresh` and `update` may be called from any thread.

    Args:
        where: a run folder, or luwu://HOST:PORT.
        credentials: for a URL.
        clock: returns the time in seconds.
    """

    def __init__(
        self, where: str, credentials: Credentials | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.where = where
        self.folder = None if where.startswith(SCHEME) else Path(where)
        self.name = where if self.folder is None else self.folder.absolute().name
        self._credentials = credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._tail = None if self.folder is None else Tail(RunPaths(self.folder).metrics_path)
        self._logs = None if self.folder is None else Logs(self.folder)
        self._alerts = None if self.folder is None else AlertFile(RunPaths(self.folder))
        self._columns = Columns()
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT + 1)
        self._restarts = 0
        self._settings: dict[str, Any] = {}
        self._stores: list[Path] = []
        self._block_names: tuple[str, ...] = ()
        self._sample: Sample | None = None
        self._state: dict[str, Any] = {"live": False, "why": "not asked yet"}

    def refresh(self) -> None:
        """Read what is new in the folder, and ask the server."""
        with self._lock:
            self._read_folder()
        state, names, sample = self._ask()
        with self._lock:
            self._state, self._sample = state, sample
            self._block_names = names or self._block_names

    def update(self, cursor: Cursor) -> tuple[dict[str, Any], Cursor]:
        """Return what a page has not got yet, as JSON can hold it, and its next cursor."""
        with self._lock:
            anew = cursor.restarts != self._restarts
            first = 0 if anew else cursor.rows
            lines = [] if self._logs is None else self._logs.since(cursor.lines)
            record: dict[str, Any] = {
                "anew": anew,
                "rows": self._columns.thinned(first, MOST_POINTS),
                "log": [line._asdict() for line in lines],
                "state": self._state,
                "binding": self.binding,
            }
            if anew:
                record["settings"] = self._settings
            if cursor.names != self._block_names:
                record["block_names"] = list(self._block_names)
            count = 0 if self._logs is None else self._logs.count
            return record, Cursor(self._restarts, len(self._columns), count, self._block_names)

    @property
    def recent(self) -> Sequence[Mapping[str, Any]]:
        """Last rows of metrics.jsonl."""
        return list(self._recent)

    @property
    def binding(self) -> str:
        """Sentence on the part that binds the run's steps now; empty where it is not under way, or nobody knows."""
        return binding_sentence(self.recent) if self._state["live"] else ""

    @property
    def state(self) -> Mapping[str, Any]:
        """State at the last `refresh`."""
        return self._state

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings by table and name, such as ``run.steps``."""
        return self._settings

    def _read_folder(self) -> None:
        if self.folder is None or self._tail is None or self._logs is None or self._alerts is None:
            return
        while True:
            lines = self._tail.lines()
            if self._tail.restarts != self._restarts:
                self._restarts, self._columns = self._tail.restarts, Columns()
                self._recent.clear()
            if not lines:
                break
            for line in lines:
                row = row_of(line)
                if row is not None:
                    self._columns.append(row)
                    self._recent.append(row)
        self._logs.refresh()
        for alert in self._alerts.refresh():
            self._logs.add(alert)
        if not self._settings:
            tables = _tables_of(self.folder)
            self._settings = flat(tables)
            self._stores = _stores_of(self.folder, tables)

    def _ask(self) -> tuple[dict[str, Any], tuple[str, ...], Sample]:
        now = Sample(self._clock(), disks=look_at_disks(self._stores))
        try:
            reply = ask_run(self.where, self._credentials, look=True)
        except LuwuError as error:
            ended = self.folder is not None and isinstance(error, ConfigError)
            return {"live": False, "why": "not under way" if ended else str(error)}, (), now
        now = replace(now, figures=dict(reply.figures))
        shares = _shares_of(self.recent[-1]) if self._recent else []
        alerts = [] if self._alerts is None else list(self._alerts.standing.values())
        return run_record(reply, self._sample, now, shares) | {"alerts": alerts}, tuple(reply.block_names), now


class Places:
    """Places that have runs: URLs, run folders, and folders of run folders, which may get others at any time.

    Args:
        places: in the order in which their runs are listed.
        credentials: for URLs.

    Raises:
        ConfigError: a place has no run now.
    """

    def __init__(self, places: Sequence[str], credentials: Credentials | None = None) -> None:
        self._places = places
        self._credentials = credentials
        self._runs: dict[str, WatchedRun] = {}
        for place in places:
            self._add(place)

    def runs(self) -> list[WatchedRun]:
        """Return the runs that there are now, those that were found first before the others."""
        for place in self._places:
            with suppress(ConfigError):  # its runs may have been removed
                self._add(place)
        return list(self._runs.values())

    def _add(self, place: str) -> None:
        for where in [place] if place.startswith(SCHEME) else _folders_in(Path(place)):
            self._runs.setdefault(where, WatchedRun(where, self._credentials))


def _folders_in(place: Path) -> list[str]:
    if _is_run(place):
        return [str(place)]
    try:
        inside = sorted(path for path in place.iterdir() if path.is_dir() and _is_run(path))
    except OSError as error:
        raise ConfigError(f"{place}: expected a run folder or a folder of them, found {error.strerror}") from None
    if not inside:
        raise ConfigError(
            f"{place}: expected a run folder or a folder of them, found neither; give the folder that `luwu train` "
            "named, or a server's URL, luwu://HOST:PORT"
        )
    return [str(path) for path in inside]


def _is_run(folder: Path) -> bool:
    run = RunPaths(folder)
    return any(path.exists() for path in (run.metrics_path, run.config_path, folder / SOCKET_NAME))


def _tables_of(folder: Path) -> Mapping[str, Any]:
    try:
        return RunPaths(folder).saved_settings() or {}
    except (LuwuError, OSError):
        return {}


def _stores_of(folder: Path, tables: Mapping[str, Any]) -> list[Path]:
    run = tables.get("run")
    named = run.get("stores") if isinstance(run, Mapping) else None
    return [Path(store) for store in named if isinstance(store, str)] if named else [folder / "store"]


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of tables by ``table.name``."""
    return {
        f"{table}.{name}": value if isinstance(value, int | float | str | bool) else str(value)
        for table, values in tables.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
    }


def _shares_of(row: Mapping[str, Any]) -> list[int]:
    shares = row.get("sequences")
    return [share for share in shares if isinstance(share, int)] if isinstance(shares, list) else []
