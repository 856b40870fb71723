"""A run as `luwu watch` follows it: the files of its folder, and the status of its server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from luwu.control.address import SCHEME
from luwu.control.credentials import Credentials
from luwu.control.frames import SOCKET_NAME
from luwu.core.errors import ConfigError, LuwuError, NotUnderWayError, ServerError
from luwu.launch.asking import ask_run
from luwu.launch.run_paths import RunPaths
from luwu.observe.binding import RECENT, binding_sentence
from luwu.watch.columns import Columns
from luwu.watch.disks import identify_disk, look_at_disks
from luwu.watch.ended import ended_words
from luwu.watch.folder import WatchedFolder
from luwu.watch.links import Link, links_told, next_links
from luwu.watch.pace import Pace, has_finite_loss, pace_of
from luwu.watch.state import Sample, run_record
from luwu.watch.wear import WRITTEN, StoreFolder, endurance_of, wear_record, writes_between, writes_of_rows

MOST_POINTS = 3000
"""Rows of a run that a page gets at once; longer runs are thinned."""

LOOK_SECONDS = 1.0
"""Time between two looks at a run that somebody watches."""


_PAUSE_SECONDS = 0.005
"""Pause between two pieces of a file: a lock is not fair, and whoever waits for it would not get it otherwise."""

_NO_ROWS = Columns()


@dataclass(frozen=True)
class Cursor:
    """Everything that a page has got of a run: rows of which reading of the file, lines of logs, and names."""

    restarts: int = -1
    rows: int = 0
    lines: int = 0
    block_names: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None


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
        self._folder = None if where.startswith(SCHEME) else WatchedFolder(Path(where))
        self.name = where if self._folder is None else Path(where).absolute().name
        self._credentials = credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._block_names: tuple[str, ...] = ()
        self._asked = False
        self._links: dict[str, Link] = {}  # also of an answer before one that did not come
        self._sample: Sample | None = None
        self._first: Sample | None = None  # since which the server's counts have grown
        self._wear: dict[str, Any] | None = None
        self._refusal: LuwuError | None = ServerError(f"{where}: its server has not answered yet")
        self._state: dict[str, Any] = {
            "live": False, "ended": False, "why": "its server has not answered yet", "alerts": []
        }  # fmt: skip

    def refresh(self) -> None:
        """Read what is new in the folder, of a long file for a second, and ask the server."""
        unreadable = self._read()
        if self.reading is not None and self._asked and not self._state["live"]:
            return  # whose server may take seconds not to answer: it is asked again once the file is read
        self._asked = True
        state, names, sample = self._ask()
        state["alerts"] = [] if self._folder is None else list(self._folder.alerts.standing.values())
        if unreadable and not state["live"]:
            state["why"] = unreadable
        wear = self._look_at_wear(sample)
        with self._lock:
            self._state, self._sample, self._wear = state, sample, wear
            self._block_names = names or self._block_names

    @property
    def reading(self) -> float | None:
        """Share of metrics.jsonl that has been read; None: all of it, as it was at the last `refresh`."""
        return None if self._folder is None else self._folder.reading

    def _read(self) -> str:
        """Read the folder in pieces, between which others may `update`; returns what could not be read."""
        folder, until = self._folder, None
        while folder is not None:
            with self._lock:
                try:
                    folder.refresh()
                except OSError as error:
                    return _unreadable(error)
            if folder.reading is None:
                break
            now = self._clock()
            until = now + LOOK_SECONDS if until is None else until
            if now >= until:
                break
            time.sleep(_PAUSE_SECONDS)
        return ""

    def seems_live(self) -> bool:
        """Return True where the run is under way, as far as can be known without a question to its server."""
        return self._folder is None or self._folder.seems_live()

    def update(self, cursor: Cursor) -> tuple[dict[str, Any], Cursor]:
        """Return what a page has not got yet, as JSON can hold it, and its next cursor; rows once all are read."""
        with self._lock:
            folder = self._folder
            restarts = 0 if folder is None else folder.restarts
            columns = _NO_ROWS if folder is None else folder.columns
            anew = cursor.restarts != restarts
            log = [] if folder is None else folder.logs.since(0 if anew else cursor.lines)
            read = columns if self.reading is None else _NO_ROWS
            record = {
                "anew": anew,
                "reading": self.reading,
                "rows": read.thinned(0 if anew else cursor.rows, MOST_POINTS),
                "rolled_back": columns.rolled_back,
                "log": [line._asdict() for line in log],
                "state": self._state,
                "wear": self._wear,
                "binding": self.binding,
                "loss_is_finite": self.reading is not None or has_finite_loss(self.recent),
                "pace": (Pace() if self.reading is not None else pace_of(self.recent))._asdict(),
            }
            lines = 0 if folder is None else folder.logs.count
            now = Cursor(restarts, len(columns), lines, self._block_names, self.settings)
            if self.reading is not None:
                now = replace(now, restarts=cursor.restarts, rows=cursor.rows)
            for name in ("block_names", "settings"):
                if getattr(now, name) != getattr(cursor, name):
                    record[name] = getattr(now, name)
            return record, now

    @property
    def recent(self) -> Sequence[Mapping[str, Any]]:
        """Last 20 rows of metrics.jsonl, after the one from which their bytes are counted."""
        return [] if self._folder is None else list(self._folder.recent)

    @property
    def binding(self) -> str:
        """Sentence on the part that binds the run's steps now; empty where it is not under way, or nobody knows."""
        if not self._state["live"]:
            return ""
        try:
            return binding_sentence(self.recent)
        except (TypeError, ValueError, LookupError, ArithmeticError):  # rows of another version, or damaged ones
            return ""

    @property
    def state(self) -> Mapping[str, Any]:
        """State at the last `refresh`."""
        return self._state

    @property
    def unseen(self) -> LuwuError | None:
        """Why nothing of the run could be seen at the last `refresh`; None: its server or its rows tell something."""
        return None if self.recent else self._refusal

    @property
    def wear(self) -> Mapping[str, Any] | None:
        """Wear of the disks of its store at the last `refresh`, as `wear_record` makes it; None: it is not known."""
        return self._wear

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings by table and name, such as ``run.steps``."""
        return {} if self._folder is None else self._folder.settings

    def _ask(self) -> tuple[dict[str, Any], tuple[str, ...], Sample]:
        folder = self._folder
        try:
            reply = ask_run(self.where, self._credentials, look=True)
        except NotUnderWayError:
            assert folder is not None
            self._refusal = None
            return {"live": False, "ended": True, "why": self._ended(folder)}, (), self._sample_now()
        except LuwuError as error:
            self._refusal = error
            return {"live": False, "ended": False, "why": str(error)}, (), self._sample_now()
        except OSError as error:  # of job.json
            self._refusal = ConfigError(_unreadable(error))
            return {"live": False, "ended": False, "why": _unreadable(error)}, (), self._sample_now()
        self._refusal = None
        links = next_links(self._links, links_told(reply))
        self._links = links
        now = replace(self._sample_now(), figures=dict(reply.figures), links=links)
        shares = _shares_of(folder.recent[-1]) if folder is not None and folder.recent else []
        first_step = 0 if folder is None else folder.first_step(reply.step)
        return run_record(reply, self._sample, now, shares, first_step), tuple(reply.block_names), now

    def _sample_now(self) -> Sample:
        """Return the time and the disks' counts; after an answer, which may have taken seconds to come."""
        return Sample(self._clock(), disks=look_at_disks([] if self._folder is None else self._folder.stores))

    def _ended(self, folder: WatchedFolder) -> str:
        steps = [row["step"] for row in folder.recent if row.get("committed") and isinstance(row["step"], int)]
        failed_at = folder.alerts.failed_at
        at = folder.written_at() if failed_at is None else failed_at
        last = steps[-1] if steps else None
        return ended_words(last, self.settings.get("run.steps"), at, failed=failed_at is not None)

    def _look_at_wear(self, now: Sample) -> dict[str, Any] | None:
        """Return the wear of the store's disks, from the run folder and from what its server has counted."""
        counted = now.figures.get(WRITTEN, 0.0)
        if now.figures and (self._first is None or counted < self._first.figures.get(WRITTEN, 0.0)):
            self._first = now
        folder = self._folder
        disks = [] if folder is None else [(str(path), identify_disk(path)) for path in folder.stores]
        here = [StoreFolder(path, *disk) for path, disk in disks if disk is not None]
        step = writes_of_rows(self.recent[-RECENT:]) or writes_between(self._first, now)
        if folder is not None and (written := max(folder.written(), counted if here else 0)):
            return wear_record(written, "by this run", step, here, endurance_of(folder.settings))
        return wear_record(counted, "since its server opened the store", step, [], None) if counted else None


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
    try:
        if _is_run(place):
            return [str(place)]
        inside = sorted(path for path in place.iterdir() if _may_be_run(path))
    except OSError as error:
        raise ConfigError(f"{place}: expected a run folder or a folder of them, found {error.strerror}") from None
    if not inside:
        raise ConfigError(
            f"{place}: expected a run folder or a folder of them, found neither; give the folder that `luwu train` "
            "named, or a server's URL, luwu://HOST:PORT"
        )
    return [str(path) for path in inside]


def _may_be_run(path: Path) -> bool:
    """Return True for a run folder; others beside it may have names that no run has, or be closed to this user."""
    try:
        return path.is_dir() and _is_run(path)
    except (ConfigError, OSError):
        return False


def _is_run(folder: Path) -> bool:
    run = RunPaths(folder)
    return any(path.exists() for path in (run.metrics_path, run.config_path, folder / SOCKET_NAME))


def _unreadable(error: OSError) -> str:
    return f"{error.filename}: cannot be read: {error.strerror}"


def _shares_of(row: Mapping[str, Any]) -> list[int]:
    shares = row.get("sequences")
    return [share for share in shares if isinstance(share, int)] if isinstance(shares, list) else []
