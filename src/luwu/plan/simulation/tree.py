"""A tree of switches and the links below it: the times when a sum is complete, and when a copy has arrived.

Packets are added up and copied as they come, so a tree adds latency for each level and no time for whole blocks. A
lost packet is sent again on its own link, and the last ones of a block are missed only after a heartbeat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luwu.core.errors import ConfigError
from luwu.plan.constants import GOODPUT_SHARE, HEARTBEAT_SECONDS, HOP_SECONDS, PACKET_BYTES

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Links:
    """Workers' links and the tree above them.

    ``fan_in``: children of a switch; ``loss``: the share of packets that a worker's link loses, each way.
    """

    workers: int
    rate: float
    fan_in: int = 31
    loss: float = 0.0

    def __post_init__(self) -> None:
        if self.fan_in < 2:
            raise ConfigError(f"fan-in: expected at least 2 children of a switch, found {self.fan_in}")
        if not 0.0 <= self.loss < 1.0:
            raise ConfigError(f"loss: expected a share of packets from 0 to less than 1, found {self.loss}")

    @property
    def levels(self) -> int:
        """Number of levels of switches, one above the other."""
        return max(1, math.ceil(math.log(max(self.workers, 2), self.fan_in) - 1e-9))

    @property
    def switches(self) -> int:
        """Number of switches in all levels."""
        count, total = self.workers, 0
        for _ in range(self.levels):
            count = math.ceil(count / self.fan_in)
            total += count
        return total

    @property
    def latency_seconds(self) -> float:
        """Seconds from a worker to the server, or back."""
        return (self.levels + 1) * HOP_SECONDS.value

    def resent_seconds(self, count: float, random: np.random.Generator) -> Times | float:
        """Return the seconds that losses of a transfer of ``count`` bytes add on each worker's link."""
        if not self.loss:
            return 0.0
        packets = max(1, round(count / (PACKET_BYTES.value * GOODPUT_SHARE.value)))
        lost = random.binomial(packets, self.loss, self.workers).astype(np.float64)
        again = lost / (1 - self.loss) * PACKET_BYTES.value * GOODPUT_SHARE.value / self.rate
        last = random.random(self.workers) < self.loss
        return again + last * HEARTBEAT_SECONDS.value


class Uplinks:
    """Each worker's link towards the server, whose pushes follow each other."""

    def __init__(self, links: Links, random: np.random.Generator) -> None:
        self._links = links
        self._random = random
        self._free_at: Times = np.zeros(links.workers)

    def push(self, ready: Times, count: float) -> Any:
        """Return the time when the sum of all workers' pushes is complete at the root; each begins when ready."""
        self._free_at = np.maximum(self._free_at, ready) + count / self._links.rate
        self._free_at += self._links.resent_seconds(count, self._random)
        return float(self._free_at.max()) + self._links.latency_seconds
