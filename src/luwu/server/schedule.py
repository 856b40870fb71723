"""The server's own decisions for programs that play a server: residency, read-ahead and eviction."""

from __future__ import annotations

from luwu.core import native
from luwu.core.manifest import Manifest
from luwu.core.native import block_specs

WindowSchedule = native.WindowSchedule


def window_schedule(manifest: Manifest, memory_bytes: int) -> WindowSchedule:
    """Return the schedule of a server with this budget, whose workers are one to it, as over UDP.

    Raises:
        MemoryBudgetError: the budget is below what the model needs.
    """
    return WindowSchedule(block_specs(manifest), manifest.chunk_elements, manifest.optimizer, memory_bytes)
