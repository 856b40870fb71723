"""Spans of a trace: records of all processes on one clock."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.core.trace import Kind


@dataclass(frozen=True)
class Span:
    """A record on the server's clock, in nanoseconds. ``block`` and ``chunk`` are None where there are none.

    ``server`` is the server that the process is, or that a switch belongs to; empty: a worker's record.
    """

    process: str
    server: str
    kind: Kind
    begin: int
    end: int
    step: int
    block: int | None = None
    chunk: int | None = None
    worker: int | None = None
    nbytes: int = 0


def seconds_of(at: float, zero: int) -> float:
    """Return the seconds from the begin of a trace, ``zero``, to a time; both are in nanoseconds."""
    return (at - zero) * 1e-9
