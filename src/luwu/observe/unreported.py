"""Rows of metrics.jsonl for attempts that the store counts and that nobody reported, from what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

from luwu.observe.meter import StepRecord, uneven_sequences, weighted_loss

Row = dict[str, Any]

TOLD_BY_NOBODY = ("slowest", "server")
"""Fields of what was measured, which a row that was not reported goes without."""


def unreported_rows(
    rows: Sequence[Row], attempts: int, step: int, noted: Mapping[int, Sequence[Mapping[str, Any]]], damaged: int = 0
) -> list[Row]:
    """Return the rows that are missing from the first known attempt to the store's last. Unknown values are None.

    Args:
        rows: the existing rows, in order, of attempts before ``attempts``.
        attempts, step: the store's counts of attempts and of committed steps.
        noted: the records that all workers of an attempt made before they voted on it, by attempt.
        damaged: lines before the first row that could not be read; each may be the row of a noted attempt.
    """
    present = {row["attempt"]: row for row in rows}
    before = {attempt: int(records[0]["step"]) for attempt, records in noted.items() if attempt < attempts}
    first = min(present or before, default=attempts)  # earlier attempts may be another run's
    while damaged > 0 and first - 1 in before:
        first, damaged = first - 1, damaged - 1
    missing = [attempt for attempt in range(first, attempts) if attempt not in present]
    before |= {row["attempt"] + 1: row["step"] for row in rows if row["step"] is not None}
    steps = _between({**before, attempts: step})
    return [_row(attempt, steps.get(attempt), steps.get(attempt + 1), noted.get(attempt, ())) for attempt in missing]


def _between(known: Mapping[int, int]) -> dict[int, int]:
    """Return the committed steps before each attempt for which the known ones leave only one value."""
    steps = dict(known)
    places = sorted(known)
    for first, last in pairwise(places):
        committed = known[last] - known[first]
        if committed == 0 or committed == last - first:
            share = 1 if committed else 0
            steps |= {place: known[first] + share * (place - first) for place in range(first, last)}
    return steps


def _row(attempt: int, before: int | None, after: int | None, noted: Sequence[Mapping[str, Any]]) -> Row:
    row: Row = dict.fromkeys(field.name for field in fields(StepRecord) if field.name not in TOLD_BY_NOBODY)
    row |= {"attempt": attempt, "step": after}
    if before is not None and after is not None:
        row["committed"] = after > before
    if noted:
        row |= {name: noted[0][name] for name in ("lr", "loss_scale")}
        row |= {name: sum(part[name] for part in noted) for name in ("tokens", "bytes_pulled", "bytes_pushed")}
        row["loss"] = weighted_loss(noted)
        if row["loss_scale"] is None:
            del row["loss_scale"]  # the loss was not scaled
        row["sequences"] = uneven_sequences(noted)
        if row["sequences"] is None:
            del row["sequences"]
    return row
