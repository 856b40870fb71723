"""Rows of metrics.jsonl as columns of numbers: little memory for long runs, and thinned for a chart."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

COLUMNS = (
    "step", "committed", "loss", "validation_loss", "grad_norm", "lr", "tokens_per_second", "seconds", "hidden",
)  # fmt: skip
"""Columns that are kept, as metrics.jsonl names them."""

CURVES = ("loss", "grad_norm", "lr", "tokens_per_second", "seconds", "hidden")
"""Columns that a page draws, beside the validation loss; the loss has most of the rows of a thinned run."""

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
        values = self._values
        rows = thin([values[name] for name in CURVES], values["committed"], values["validation_loss"], first, most)
        return {name: [_known(values[row]) for row in rows] for name, values in self._values.items()}


def thin(
    curves: Sequence[Sequence[float]],
    committed: Sequence[float],
    validation: Sequence[float],
    first: int,
    most: int,
) -> list[int]:
    """Choose rows from ``first`` on, ascending, ``most`` of them or a few more.

    The rows are divided into many equal parts. Of each of them these are the rows of least and of largest value of each
    curve, and the last one; the first curve has more and smaller parts than the others. Rows with a validation loss
    come to them, ``most`` and the last one at most, and the last rows.

    Args:
        curves: values of each curve, by row, in the order of their weight. NaN stands for an unknown value.
        committed: 1 for each row whose step was committed: others are in no curve.
        validation: validation losses.
        first: the first row.
        most: rows that are wanted.
    """
    end = len(committed)
    if end - first <= most:
        return list(range(first, end))
    main, *others = curves
    half = most // 2  # for the curve that is looked at most
    chosen: set[int] = {first}
    for rows in _parts(first, end, half // _BUCKET_ROWS):
        chosen |= {*_extremes(main, committed, rows), rows[-1]}
    for curve in others:
        for rows in _parts(first, end, half // (2 * len(others))):
            chosen |= _extremes(curve, committed, rows)
    validated = [row for row in range(first, end) if not math.isnan(validation[row])]
    chosen |= {*validated[:: max(1, -(-len(validated) // most))], *validated[-1:]}
    chosen |= set(range(max(first, end - LAST_ROWS), end))
    return sorted(chosen)


def _parts(first: int, end: int, parts: int) -> Iterator[range]:
    parts = max(1, parts)
    for part in range(parts):
        yield range(first + (end - first) * part // parts, first + (end - first) * (part + 1) // parts)


def _extremes(curve: Sequence[float], committed: Sequence[float], rows: range) -> set[int]:
    """Return the rows of the least and of the largest value that are drawn; empty where none is."""
    within = slice(rows.start, rows.stop)
    drawn = [value if done == 1 else math.nan for value, done in zip(curve[within], committed[within], strict=True)]
    known = [value for value in drawn if -math.inf < value < math.inf]
    return {rows[drawn.index(value)] for value in (min(known), max(known))} if known else set()


def number_of(value: object) -> float:
    """Return a value as a number; NaN: it is none, or too large for one."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
