"""Growth of counts."""

from __future__ import annotations


def rate(before: float | None, now: float | None, seconds: float) -> float | None:
    """Return the growth of a count a second; None where it is unknown, or began again."""
    if before is None or now is None or now < before or not seconds > 0:  # a time that a stranger tells may be NaN
        return None
    return (now - before) / seconds
