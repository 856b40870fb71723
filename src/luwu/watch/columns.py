"""Rows of metrics.jsonl as columns of numbers: little memory for long runs, and thinned for a chart."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = (
    "step", "committed", "loss", "validation_loss", "grad_norm", "lr", "tokens_per_second", "seconds", "hidden",
)  # fmt: skip
"""Columns that are kept, as metrics.jsonl names them."""

_TYPES = {"step": "d"}
_TYPE = "f"  # whose seven digits are more than a page shows

_BUCKET_ROWS = 3

LAST_ROWS = 20
"""Rows at the end that are never left out: a page takes its figures of now from them."""

ColumnValues = dict[str, list[float | None]]
"""Values by column, a list of equal length each; None: the row has no such value."""


class Columns:
    """Columns of a run's rows, in the order of the file.

    Attributes:
        rolled_back: number of rows whose step was rolled back.
    """

    def __init__(self) -> None:
        self.rolled_back = 0
        self._values: dict[str, array[float]] = {name: array(_TYPES.get(name, _TYPE)) for name in COLUMNS}

    def __len__(self) -> int:
        return len(self._values["step"])

    def append(self, row: Mapping[str, Any]) -> None:
        """Take a row; what it lacks, and what is no number, is unknown."""
        for name, values in self._values.items():
            value = row.get(name)
            values.append(number_of(value))
        self.rolled_back += row.get("committed") is False

    def thinned(self, first: int, most: int) -> ColumnValues:
        """Return the rows from ``first`` on; where there are more than ``most``, those that a chart's shape needs."""
        rows = thin(self._values["loss"], self._values["validation_loss"], first, most)
        return {name: [_known(values[row]) for row in rows] for name, values in self._values.items()}


def thin(loss: Sequence[float], validation: Sequence[float], first: int, most: int) -> list[int]:
    """Choose rows from ``first`` on, ascending, ``most`` of them or a few more.

    Of each of many equal parts of the rows these are the one of least loss, that of the largest, and the last one. Rows
    with a validation loss come to them, ``most`` and the last one at most, and the last rows. NaN stands for an unknown
    value.
    """
    end = len(loss)
    if end - first <= most:
        return list(range(first, end))
    parts = max(1, most // _BUCKET_ROWS)
    chosen: set[int] = {first}
    for part in range(parts):
        rows = range(first + (end - first) * part // parts, first + (end - first) * (part + 1) // parts)
        known = [row for row in rows if not math.isnan(loss[row])]
        if known:
            chosen |= {min(known, key=loss.__getitem__), max(known, key=loss.__getitem__)}
        chosen.add(rows[-1])
    validated = [row for row in range(first, end) if not math.isnan(validation[row])]
    chosen |= {*validated[:: max(1, -(-len(validated) // most))], *validated[-1:]}
    chosen |= set(range(max(first, end - LAST_ROWS), end))
    return sorted(chosen)


def number_of(value: object) -> float:
    """Return a value as a number; NaN: it is none, or too large for one."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
