"""Settings of every server that keeps a store: its snapshots, and its pauses on a full disk."""

from __future__ import annotations

from typing import NamedTuple

from luwu.core.quantities import CountOrZero, SecondsOrZero
from luwu.core.room import DISK_FULL_WAIT_SECONDS
from luwu.core.settings import Group


class Snapshots(NamedTuple):
    """Schedule of snapshots: one every ``every`` committed steps, 0: none; the newest ``keep`` stay, 0: all."""

    every: int = 0
    keep: int = 0


NO_SNAPSHOTS = Snapshots()


class DiskSettings(Group):
    """Snapshots of a store during training, and pauses on a full disk."""

    snapshot_every: CountOrZero = 0
    """committed steps between two snapshots of the store; 0: none are taken"""
    snapshot_keep: CountOrZero = 2
    """number of those snapshots that stay, the newest; each takes the room of half the store; 0: all"""
    disk_full_wait_seconds: SecondsOrZero = DISK_FULL_WAIT_SECONDS
    """seconds that a full disk may pause the run, which continues by itself when there is room; 0: it ends the run"""

    @property
    def snapshots(self) -> Snapshots:
        """Schedule of snapshots that these settings ask for."""
        return Snapshots(self.snapshot_every, self.snapshot_keep)
