"""Settings of every server that keeps a store: commit points, snapshots, and pauses on a full disk."""

from __future__ import annotations

from typing import NamedTuple

from luwu.core.durability import CommitPoints, Durable, parse_durable
from luwu.core.quantities import CountOrZero, SecondsOrZero
from luwu.core.room import DISK_FULL_WAIT_SECONDS
from luwu.core.settings import Group


class Snapshots(NamedTuple):
    """Schedule of snapshots: one every ``every`` committed steps, 0: none; the newest ``keep`` stay, 0: all."""

    every: int = 0
    keep: int = 0


NO_SNAPSHOTS = Snapshots()


class DiskSettings(Group):
    """Commit points and snapshots of a store during training, and pauses on a full disk."""

    durable: Durable = "step"
    """steps put on the disk: each 'step', every '10 steps', every '5 min', or at a 'stop'; a crash loses those after"""
    snapshot_every: CountOrZero = 0
    """committed steps between two snapshots of the store; 0: none are taken"""
    snapshot_keep: CountOrZero = 2
    """number of those snapshots that stay, the newest; each takes the room of half the store; 0: all"""
    disk_full_wait_seconds: SecondsOrZero = DISK_FULL_WAIT_SECONDS
    """seconds that a full disk may pause the run, which continues by itself when there is room; 0: it ends the run"""

    @property
    def commit_points(self) -> CommitPoints:
        """Commit points that these settings ask for."""
        return parse_durable(self.durable)

    @property
    def commit_words(self) -> str:
        """Steps that these settings put on the disk, for `luwu.core.division.Standing`."""
        steps, seconds = self.commit_points
        if steps == 1:
            return "'step'"
        words = f"'{steps} steps'" if steps else f"'{seconds:g} s'" if seconds else "'stop'"
        return f"{words} and snapshot_every {self.snapshot_every}" if self.snapshot_every else words

    @property
    def snapshots(self) -> Snapshots:
        """Schedule of snapshots that these settings ask for."""
        return Snapshots(self.snapshot_every, self.snapshot_keep)
