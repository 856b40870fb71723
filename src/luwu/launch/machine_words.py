"""Words for machines and the workers that they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from luwu.core.words import counted


def workers_text(ranks: Iterable[int]) -> str:
    """Return "worker 2" or "workers 2 and 3"."""
    *others, last = map(str, ranks)
    return f"workers {', '.join(others)} and {last}" if others else f"worker {last}"


def machine_text(host: str, peer: str, ranks: Sequence[int], waits: int) -> str:
    """Return what a machine does: the workers that it runs, or the places that it waits for."""
    if ranks:
        does = f"runs {workers_text(ranks)}"
    elif waits:
        does = f"waits to run {counted(waits, 'worker')} in the place of lost ones"
    else:
        does = "runs no worker now"
    return f"machine {host} ({peer}): {does}"
