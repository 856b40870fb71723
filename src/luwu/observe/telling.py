"""Rows of metrics.jsonl that tell what their step waited for: damaged ones do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

SERVED = {
    "read_bytes", "written_bytes", "read_seconds", "write_seconds", "update_seconds", "threads", "pulls_waited",
    "states_waited", "shared_memory",
}  # fmt: skip
"""Counts of a server that a row must have; rows of older versions have fewer."""

MOST = 1e18
"""Bound of every number in a row that is used: as bytes or seconds no step has it."""

SHORTEST_SECONDS = 1e-9
"""Bound below which a time is none that a step takes."""


def tells(row: Mapping[str, Any]) -> bool:
    """Return True for a committed step's row that has its time, and what its slowest worker waited for."""
    seconds = row.get("seconds")
    return (
        bool(row.get("committed"))
        and is_amount(seconds)
        and seconds >= SHORTEST_SECONDS
        and is_amount(row.get("tokens"))
        and _is_slowest(row.get("slowest"))
        and _is_server(row.get("server"))
    )


def is_amount(value: Any) -> TypeGuard[float]:
    """Return True for a number from 0 to `MOST`; NaN is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST


def _is_slowest(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    own, data, others, waits = (part.get(f"{name}_seconds") for name in ("own", "data", "others", "wait"))
    return (
        isinstance(part.get("rank"), int)
        and is_amount(own)
        and is_amount(data)
        and data <= own
        and (others is None or is_amount(others))
        and isinstance(waits, list)
        and len(waits) == 3
        and all(map(is_amount, waits))
        and "others_seconds" in part
    )


def _is_server(part: Any) -> bool:
    """Return True for a server's counts, also for fewer of them, or for none."""
    if part is None:
        return True
    if not isinstance(part, Mapping):
        return False
    if not part.keys() >= SERVED:
        return True
    return all(is_amount(part[name]) for name in SERVED - {"shared_memory"}) and part["threads"] >= 1
