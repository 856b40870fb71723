"""The file of one JSON object a step that a run leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any

from luwu.observe.meter import StepRecord
from luwu.observe.unreported import unreported_rows
from luwu.store.own_files import unshare
from luwu.store.room import NO_WAIT, Room


class MetricsLog:
    """The file metrics.jsonl, to which each step appends a row; on resume its rows are made to agree with the store."""

    def __init__(self, path: Path, room: Room = NO_WAIT) -> None:
        self.path = path
        self._room = room
        self._file = self._open()

    def append(self, record: StepRecord) -> None:
        """Write one row; what is not finite becomes null, and what there was not is left out."""
        row = asdict(record)
        for name in ("validation_loss", "loss_scale"):
            if row[name] is None:
                del row[name]
        self._room.append(self._file, _line(row).encode(), self.path)

    def resume(self, attempts: int, step: int, noted: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Make the file have one row for each attempt of the run that the store counts; drops a half-written row.

        Rows of later attempts are cut off, because the run makes those attempts again. Missing rows are written with
        the values that are known, see `unreported_rows`.
        """
        rows = [row for row in read_metrics(self.path) if row["attempt"] < attempts]
        rows = sorted([*rows, *unreported_rows(rows, attempts, step, noted)], key=lambda row: row["attempt"])
        self._room.write_file(self.path, "".join(map(_line, rows)))
        self._file.close()
        self._file = self._open()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

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
    """All whole rows of a metrics.jsonl; an empty list if there is no file. A torn last row is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
