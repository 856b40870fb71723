"""Memory of processes, read from /proc while they run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path


def process_tree(pid: int) -> list[int]:
    """The process and all of its descendants that are alive."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def memory_of(pids: Iterable[int]) -> int:
    """Proportional set size (bytes) of processes: a shared page counts once in the sum of those that share it."""
    return sum(_field_bytes(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in pids)


def _field_bytes(path: str, field: str) -> int:
    with contextlib.suppress(OSError), open(path) as lines:
        for line in lines:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0
