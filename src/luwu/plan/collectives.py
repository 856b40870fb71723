"""Collectives among N workers: bytes on a worker's link, time by ring, tree or switch, and beside GEMMs.

Volumes and steps are those of Thakur et al. (2005) for rings and of PAT (arXiv 2506.20252) for trees of all-gather and
reduce-scatter. A switch that adds up saves an all-reduce half its bytes; of a separate all-gather or reduce-scatter the
busier direction of a link carries as much as before (arXiv 2409.00918).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from luwu.plan.constants import COLLECTIVE_EXPOSED, COLLECTIVE_SLOWED, HOP_SECONDS

Algorithm = Literal["ring", "tree", "switch"]
Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]


def link_bytes(operation: Operation, algorithm: Algorithm, payload_bytes: float, workers: int) -> float:
    """Bytes in the busier direction of a worker's link for a whole of ``payload_bytes``."""
    share = payload_bytes * (workers - 1) / workers
    if operation == "all_reduce":
        return payload_bytes if algorithm == "switch" and workers > 1 else 2 * share
    return share


def collective_seconds(
    operation: Operation, algorithm: Algorithm, payload_bytes: float, workers: int, rate: float
) -> float:
    """Return the seconds alone, over links of ``rate`` bytes a second; 0 for one worker."""
    if workers == 1:
        return 0.0
    rounds = {"ring": workers - 1, "tree": math.ceil(math.log2(workers)), "switch": 1}[algorithm]
    twice = 2 if operation == "all_reduce" and algorithm != "switch" else 1
    return link_bytes(operation, algorithm, payload_bytes, workers) / rate + twice * rounds * HOP_SECONDS.value


@dataclass(frozen=True)
class Transfer:
    """Collectives one after the other: their time alone, and that of all their bytes on one link.

    A GPU writes the whole of what it gathers, whatever part came over the link.
    """

    seconds: float
    whole_seconds: float

    def __add__(self, other: Transfer) -> Transfer:
        return Transfer(self.seconds + other.seconds, self.whole_seconds + other.whole_seconds)

    @property
    def crowded_seconds(self) -> float:
        """Return the seconds beside GEMMs, where the GPU's part of the work is slower, as measured with two GPUs."""
        return self.seconds + (1 / COLLECTIVE_SLOWED.value - 1) / 2 * self.whole_seconds


def transfer(
    operation: Operation, algorithm: Algorithm, payload_bytes: float, workers: int, rate: float, times: int = 1
) -> Transfer:
    """Collectives of ``payload_bytes`` each."""
    if workers == 1:
        return Transfer(0.0, 0.0)
    seconds = collective_seconds(operation, algorithm, payload_bytes, workers, rate)
    return Transfer(times * seconds, times * payload_bytes / rate)


def beside_compute(compute_seconds: float, collectives: Transfer, *, interferes: bool = True) -> float:
    """Return the seconds of both together.

    Without interference the longer hides the shorter. With it, collectives that run on the GPU are slower beside GEMMs,
    and a part of their time waits for them (arXiv 2409.00918 measured both on NCCL).
    """
    if not interferes:
        return max(compute_seconds, collectives.seconds)
    waits = COLLECTIVE_EXPOSED.value * collectives.crowded_seconds
    return max(compute_seconds + waits, collectives.seconds)
