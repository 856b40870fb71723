"""Lines of a run's logs with their levels, from the files of its folder."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import NamedTuple

from luwu.watch.tails import READ_BYTES, Tail

MOST_LINES = 1000
"""Lines that are kept of a run."""

LONGEST_LINE = 2000

MOST_BYTES = MOST_LINES * LONGEST_LINE
"""Bytes at a log's end that are read."""

LEVELS = ("debug", "info", "warning", "error")

_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|\b(Traceback|\w*(?:Error|Exception))\b|\b(\w*Warning)\b")


class Line(NamedTuple):
    """A line of a log: the file's name without its ending, a level of `LEVELS`, and the text."""

    source: str
    level: str
    text: str


def level_of(text: str) -> str:
    """Return the level of a line: the one that it names; an error's, a warning's; else ``info``."""
    found = _LEVEL.search(text)
    if found is None:
        return "info"
    if found[1]:
        return "error" if found[1] == "CRITICAL" else found[1].lower()
    return "error" if found[2] else "warning"


class Logs:
    """The last lines of all logs in a folder.

    Attributes:
        count: lines that were ever read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails: dict[Path, Tail] = {}
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)
        self.count = 0

    def refresh(self) -> None:
        """Read what has been written since the last call; raises OSError for a log that cannot be read."""
        errors: list[OSError] = []
        for path in sorted(self._folder.glob("*.log")):
            try:
                self._read(path)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _read(self, path: Path) -> None:
        tail = self._tails.setdefault(path, Tail(path, MOST_BYTES))
        for _ in range(1 + MOST_BYTES // READ_BYTES):  # a log may grow faster than it is read
            for line in tail.lines():
                text = line[: 4 * LONGEST_LINE].decode(errors="replace").rstrip()[:LONGEST_LINE]
                if text:
                    self.add(Line(path.stem, level_of(text), text))

    def add(self, line: Line) -> None:
        """Add a line."""
        self._lines.append(line)
        self.count += 1

    def since(self, count: int) -> list[Line]:
        """Return the lines after the first ``count``, as far as they are kept."""
        new = min(self.count - count, len(self._lines))
        return list(self._lines)[len(self._lines) - new :] if new > 0 else []
