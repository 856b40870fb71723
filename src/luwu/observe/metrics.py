"""The file of one JSON object a step that a run leaves behind."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from luwu.observe.meter import StepRecord
from luwu.store.own_files import drop_shared, unshare


class MetricsLog:
    """metrics.jsonl: appended step by step; on resume, rows past the committed step are cut off."""

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
        for name in ("loss", "grad_norm", "validation_loss"):
            if row.get(name) is not None and not math.isfinite(row[name]):
                row[name] = None  # JSON has no NaN
        self._file.write(json.dumps(row) + "\n")

    def truncate(self, attempts: int) -> None:
        """Keep the rows of the first `attempts` attempts, which is where the store stands; drop a half-written row."""
        kept = [row for row in read_metrics(self.path) if row["attempt"] < attempts]
        partial = self.path.with_suffix(".partial")
        drop_shared(partial)
        partial.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        self._file.close()
        partial.replace(self.path)
        self._file = self.path.open("a", encoding="utf-8", buffering=1)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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
