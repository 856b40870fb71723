"""Heartbeats, which also acknowledge, that the server sends and receives in a second: for 8 workers as for 1."""

from __future__ import annotations

import sys
import time
from typing import Any

from common import arguments, result, run, table
from network_side import Hosts, NetworkSide

NAME = "network_heartbeats"
BAR = "heartbeats a second at the server, under load and idle, within 10 % for any N"
SAME = 0.1
BLOCKS, ELEMENTS = 16, 1 << 18
MTU = 9000  # fewer packets: the processors are for the heartbeats
RATE_BITS = 100e6  # so that the links limit, and not this machine's processors


def per_second(side: NetworkSide, load: bool, seconds: float) -> float:
    """Heartbeats in and out at the server, while the workers push and pull or while nothing happens."""
    began, before = time.monotonic(), side.server_counts()["heartbeats"]
    if load:
        rounds = max(1, round(seconds * RATE_BITS / 8 / side.bytes))
        side.exchange(push=True, pull=True, rounds=rounds)
    else:
        time.sleep(seconds)
    after, ended = side.server_counts()["heartbeats"], time.monotonic()
    return (after - before) / (ended - began)


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    seconds = 2.0 if options.quick else 6.0

    def measure() -> dict[str, Any]:
        found: dict[int, dict[str, float]] = {}
        for workers in (1, 2, 4, 8):
            with Hosts(workers, mtu=MTU) as hosts, NetworkSide(hosts, [ELEMENTS] * BLOCKS, echo=False) as side:
                hosts.limit(RATE_BITS)
                side.exchange(push=True, pull=True)
                found[workers] = {"load": per_second(side, True, seconds), "idle": per_second(side, False, seconds)}
        table(["N", "under load /s", "idle /s"], [[workers, *rates.values()] for workers, rates in found.items()])
        grown = {state: max(abs(rates[state] / found[1][state] - 1) for rates in found.values()) for state in found[1]}
        return result(
            NAME, ours=found[8]["load"], peer=found[1]["load"], bar=BAR, ok=max(grown.values()) <= SAME, unit="1/s",
            details={"per_second": {str(workers): rates for workers, rates in found.items()}, "differs": grown},
        )  # fmt: skip

    return run(NAME, BAR, "1/s", measure)


if __name__ == "__main__":
    sys.exit(main())
