"""The file of one JSON object a step that a run leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

from luwu.core.errors import ConfigError
from luwu.core.files import open_without_wait, require_file, unshare
from luwu.core.room import NO_WAIT, Room
from luwu.core.words import counted
from luwu.observe.meter import StepRecord
from luwu.observe.unreported import unreported_rows

MOST_ATTEMPTS = 1 << 62
"""Bound of an attempt's number in a row that is read."""

LONGEST_ROW_BYTES = 8 << 20
"""Bytes of a line that are looked at; no row is longer, and a damaged file may have a line of many gigabytes."""

_READ_BYTES = 1 << 20  # with Python's 8 KiB a line of gigabytes takes four times as long


class MetricsLog:
    """The file metrics.jsonl, to which each step appends a row; on resume its rows are made to agree with the store."""

    def __init__(self, path: Path, room: Room = NO_WAIT) -> None:
        self.path = path
        self._room = room
        self._file = self._open()

    def append(self, record: StepRecord) -> None:
        """Write one row; what is not finite becomes null, and what there was not is left out."""
        row = asdict(record)
        for name in ("validation_loss", "loss_scale", "sequences", "slowest", "server"):
            if row[name] is None:
                del row[name]
        self._room.append(self._file, _line(row).encode(), self.path)

    def resume(self, attempts: int, step: int, noted: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
        """Make the file have one row for each attempt of the run that the store counts.

        Rows of later attempts are cut off, because the run makes those attempts again. Missing rows are written with
        the values that are known, see `unreported_rows`. A half-written last row is dropped; where another line is
        damaged, the old file is kept beside the new one. Damaged first lines are written again if they were noted.

        Returns:
            What was wrong with the file, for the user; empty if nothing was.
        """
        whole, damaged, leading = _read_rows(self.path)
        word = self._keep_damaged(damaged) if damaged else ""
        rows = [row for row in whole if row["attempt"] < attempts]
        rows = sorted([*rows, *unreported_rows(rows, attempts, step, noted, leading)], key=lambda row: row["attempt"])
        self._replace(rows)
        return word

    def note_validation(self, step: int, loss: float) -> None:
        """Write the validation loss into the row of a committed step, if there is one."""
        rows = read_metrics(self.path)
        for row in rows:
            if row["step"] == step and row.get("committed"):
                row["validation_loss"] = loss
        self._replace(rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._room.write_file(self.path, "".join(map(_line, rows)))
        self._file.close()
        self._file = self._open()

    def _keep_damaged(self, damaged: int) -> str:
        kept = self.path.with_name(f"{self.path.name}.damaged")
        self._room.write_file(kept, self.path.read_bytes())
        lines = counted(damaged, "line")
        return f"{self.path}: {lines} could not be read and {'was' if damaged == 1 else 'were'} left out; see {kept}"

    def _open(self) -> FileIO:
        def attempt() -> FileIO:
            unshare(self.path)
            return self.path.open("ab", buffering=0)

        return self._room.retry(attempt, self.path)


def _line(row: Mapping[str, Any]) -> str:
    """Return a row as JSON, with null in the place of NaN and infinity."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
    return json.dumps(finite) + "\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return all whole rows of a metrics.jsonl; an empty list if there is no file. Damaged lines are left out.

    Raises:
        ConfigError: no file is there, but a pipe or a folder, or this user may not read it.
    """
    return list(iterate_metrics(path))


def iterate_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that `read_metrics` returns, of which memory then holds one at a time; raises as that does."""
    for line in _lines_of(path):
        if (row := row_of(line)) is not None:
            yield row


def _read_rows(path: Path) -> tuple[list[dict[str, Any]], int, int]:
    """Return the whole rows, the number of damaged lines, and of those before the first row.

    A last line without its end is not damaged. Raises as `read_metrics` does.
    """
    rows: list[dict[str, Any]] = []
    damaged = leading = 0
    for number, line in enumerate(_lines_of(path)):
        row = row_of(line)
        if row is None:
            damaged += line.endswith(b"\n")
            continue
        leading = leading if rows else number
        rows.append(row)
    return rows, damaged, leading


def _lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, with their ends; nothing if there is no file. Raises as `read_metrics` does.

    A line that is too long is cut, and has its end if it had one.
    """
    try:
        with BufferedReader(FileIO(path, opener=open_without_wait), _READ_BYTES) as file:
            require_file(path)
            while line := file.readline(LONGEST_ROW_BYTES):
                end = line
                while not end.endswith(b"\n") and (more := file.readline(LONGEST_ROW_BYTES)):
                    end = more
                yield line if line is end or not end.endswith(b"\n") else line + b"\n"
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        require_file(path)
        raise ConfigError(
            f"{path}: expected rows of a run, found {error.strerror}; give this user permission to read the file"
        ) from None


def row_of(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line of metrics.jsonl; None if it has none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not {"attempt", "step"} <= row.keys():
        return None
    attempt, step = row["attempt"], row["step"]
    whole = isinstance(attempt, int) and 0 <= attempt < MOST_ATTEMPTS and isinstance(step, int | None)
    return row if whole else None
