"""Check that the host has memory for what a worker is asked to keep."""

from __future__ import annotations

from pathlib import Path

from luwu.core.errors import MemoryBudgetError
from luwu.worker.flatten import Unit

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_SUM_BYTES = 4  # float32


def check_room_for_sums(units: list[Unit]) -> None:
    """Check that float32 sums of all gradients fit the free memory.

    Raises:
        MemoryBudgetError: they do not; says how much they take.
    """
    needed = _SUM_BYTES * sum(unit.trainable.elements for unit in units if unit.trainable is not None)
    available = available_bytes()
    if available is not None and needed > available:
        raise MemoryBudgetError(
            f"gradients of several backward passes: expected {needed} bytes of free memory, 4 for each trainable "
            f"parameter, found {available}; call the model once with the whole batch and set "
            "parallelize(micro_batch_size=...), which keeps no gradients"
        )


def available_bytes() -> int | None:
    """Return the bytes that this process may still take: the machine's free memory, or its control group's if less."""
    found = []
    try:
        line = next(line for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) * 1024)
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit != "max":
            found.append(int(limit) - int((_CGROUP / "memory.current").read_text()))
    except (OSError, StopIteration, ValueError):
        pass  # no such limit here, or none that can be read
    return min(found, default=None)
