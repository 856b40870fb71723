"""When a server takes snapshots of its store by itself."""

from __future__ import annotations

from typing import NamedTuple


class Snapshots(NamedTuple):
    """After ``every`` so many committed steps, 0: never; of these the newest ``keep`` stay, 0: all."""

    every: int = 0
    keep: int = 0


NO_SNAPSHOTS = Snapshots()
