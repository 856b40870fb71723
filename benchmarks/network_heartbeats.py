"""Heartbeats, which also acknowledge, that the server sends and receives in a second: for 8 workers as for 1."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Row, all_of, arguments, result, run, table
from kit.network_side import Hosts, NetworkSide
from kit.sampling import Bar, Comparison

NAME = "network_heartbeats"
BAR = "heartbeats a second at the server, under load and idle, within 10 % for any N"
GROUPS = (1, 2, 4, 8)
BARS = [
    Bar(state, f"{state}, one worker", limit, at_least)
    for state in ("load", "idle") for limit, at_least in ((0.9, True), (1.1, False))
]  # fmt: skip
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


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    rates = found["per_second"]
    workers = ", ".join(rates)
    yield (
        f"heartbeats at the server, {workers} workers",
        ", ".join(f"{rate['load']:.0f}" for rate in rates.values()) + " a second under load",
        ", ".join(f"{rate['idle']:.0f}" for rate in rates.values()) + " idle",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    seconds, windows = options.effort((6.0, 1), quick=(0.6, 5), check=(0.2, 1))
    groups = options.size(GROUPS, check=(1, 2))
    blocks = options.effort(BLOCKS, quick=BLOCKS // 2, check=1)

    def measure() -> dict[str, Any]:
        seen: dict[int, Comparison] = {}
        for workers in groups:
            with Hosts(workers, mtu=MTU) as hosts, NetworkSide(hosts, [ELEMENTS] * blocks, echo=False) as side:
                hosts.limit(RATE_BITS)
                side.exchange(push=True, pull=True)
                seen[workers] = Comparison(BARS if workers > 1 else [], family=len(BARS) * (len(GROUPS) - 1))
                for number in range(windows):
                    rates = {state: per_second(side, state == "load", seconds) for state in ("load", "idle")}
                    one = seen[1].rounds[number] if workers > 1 else rates
                    seen[workers].add(rates | {f"{state}, one worker": one[state] for state in rates})
            if not options.quick:
                seen[workers].conclude()
        found = {
            workers: {state: comparison.medians[state] for state in ("load", "idle")}
            for workers, comparison in seen.items()
        }
        table(["N", "under load /s", "idle /s"], [[workers, *rates.values()] for workers, rates in found.items()])
        grown = {state: max(abs(rates[state] / found[1][state] - 1) for rates in found.values()) for state in found[1]}
        return result(
            NAME, ours=found[groups[-1]]["load"], peer=found[1]["load"], bar=BAR,
            ok=all_of(*(comparison.ok for comparison in seen.values())), unit="1/s",
            details={"per_second": {str(workers): rates for workers, rates in found.items()}, "differs": grown},
        )  # fmt: skip

    return run(NAME, BAR, "1/s", measure, options)


if __name__ == "__main__":
    sys.exit(main())
