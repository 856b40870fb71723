"""The file of one JSON object a step that a run leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from luwu.observe.meter import StepRecord
from luwu.observe.unreported import unreported_rows
from luwu.store.own_files import drop_shared, unshare


class MetricsLog:
    """metrics.jsonl: appended step by step; on resume it is made to fit the store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        unshare(path)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def append(self, record: StepRecord) -> None:
        """Write one row; what is not finite becomes null, and what there was not is left out."""
        row = asdict(record)
        for name in ("validation_loss", "loss_scale"):
            if row[name] is None:
                del row[name]
        self._file.write(_line(row))

    def resume(self, attempts: int, step: int, noted: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        """Have one row for each attempt of the run that the store counts; a half-written row is dropped.

        Rows of later attempts are cut off, because the run makes those again. Missing ones are written from what is
        known of them, see `unreported_rows`.
        """
        rows = [row for row in read_metrics(self.path) if row["attempt"] < attempts]
        rows = sorted([*rows, *unreported_rows(rows, attempts, step, noted)], key=lambda row: row["attempt"])
        partial = self.path.with_suffix(".partial")
        drop_shared(partial)
        partial.write_text("".join(map(_line, rows)), encoding="utf-8")
        self._file.close()
        partial.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8", buffering=1)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(row: Mapping[str, Any]) -> str:
    """A row as JSON, which has no NaN and no infinity."""
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
