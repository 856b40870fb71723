"""Snapshots that a server takes of its store by itself."""

from __future__ import annotations

from typing import NamedTuple


class Snapshots(NamedTuple):
    """Schedule of snapshots: one every ``every`` committed steps, 0: none; the newest ``keep`` stay, 0: all."""

    every: int = 0
    keep: int = 0


NO_SNAPSHOTS = Snapshots()
