"""Pace of a run in its last attempts: sums over sums, so that a long attempt counts by its time. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from luwu.observe.binding import RECENT
from luwu.watch.columns import number_of


class Pace(NamedTuple):
    """Means over the last 20 attempts; None where no row tells.

    Attributes:
        tokens_per_second: tokens of the attempts over their time.
        seconds: time of an attempt.
        hidden: share of communication that no worker waits for, each attempt by its time.
    """

    tokens_per_second: float | None = None
    seconds: float | None = None
    hidden: float | None = None


def pace_of(rows: Sequence[Mapping[str, Any]]) -> Pace:
    """Return the pace of the last 20 rows of metrics.jsonl; a row that lacks a figure is left out of its mean."""
    timed = [row for row in rows[-RECENT:] if 0 < number_of(row.get("seconds")) < math.inf]
    return Pace(
        _ratio([(number_of(row.get("tokens")), row["seconds"]) for row in timed]),
        _ratio([(row["seconds"], 1.0) for row in timed]),
        _ratio([(number_of(row.get("hidden")) * row["seconds"], row["seconds"]) for row in timed]),
    )


def has_finite_loss(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return False where the last attempt's loss was infinite or no number, which its row has null for.

    A row of an attempt that nobody reported lacks its time, too: its loss is not known.
    """
    return not rows or rows[-1].get("loss", 0.0) is not None or rows[-1].get("seconds") is None


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    known = [pair for pair in pairs if math.isfinite(pair[0])]
    ratio = sum(count for count, _ in known) / sum(over for _, over in known) if known else math.nan
    return ratio if math.isfinite(ratio) else None
