"""Losses beside those of another side, and how their differences are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, Context


def worst_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative difference of two runs' losses; infinite where a loss is not finite.

    Raises ValueError where the runs have different lengths.
    """
    differences = [abs(ours - theirs) / abs(theirs) for ours, theirs in zip(found, expected, strict=True)]
    return max(differences) if all(map(math.isfinite, differences)) else math.inf


def within(difference: float) -> str:
    """Return a number of one digit that is not below a difference, as 3e-7 for 2.27e-07."""
    return f"{Context(prec=1, rounding=ROUND_CEILING).create_decimal_from_float(difference):.0e}"
