"""Goodput over UDP of 1 to 8 workers: pushing, pulling, and both at once; what the server carries does not grow with N.

Each participant has a network namespace of its own. The bar is measured where each host's link is limited, so that
the links are what limits and not the processors; the goodput without limits stands beside a plain TCP stream.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from common import arguments, median_alternating, result, run, table
from network_side import Hosts, NetworkSide, difference, lost

NAME = "network_goodput"
BAR = "on limited links both at once at least 1.7x the faster alone; server bytes and packets the same for any N (2 %)"
BOTH_OVER_ONE, SAME = 1.7, 0.02
KINDS = {"push": (True, False), "pull": (False, True), "both": (True, True)}
BLOCKS, ELEMENTS = 16, 1 << 18
MTU = 9000


def measure_group(workers: int, rate_bits: float, rounds: int, repeats: int) -> dict[str, Any]:
    """Bytes a second of every kind, limited and not, and what the server carried in one round of both."""
    with Hosts(workers, mtu=MTU) as hosts, NetworkSide(hosts, [ELEMENTS] * BLOCKS, echo=False) as side:

        def goodputs() -> dict[str, float]:
            side.exchange(push=True, pull=True)  # finds the rate
            sides = {
                kind: lambda push=push, pull=pull: side.goodput(push=push, pull=pull, rounds=rounds)
                for kind, (push, pull) in KINDS.items()
            }
            return median_alternating({**sides, "tcp": lambda: hosts.tcp_bytes_per_second(0.5)}, repeats)

        hosts.limit(rate_bits)
        limited = goodputs()
        rounds_seen = [one_round(side) for _ in range(3)]
        hosts.unlimit()
        unlimited = goodputs()
        return {
            "limited": limited,
            "unlimited": unlimited,
            "server": {name: statistics.median(seen[name] for seen in rounds_seen) for name in rounds_seen[0]},
            "trouble": {**lost(side.stats()), "overflows": hosts.overflows()},
        }


def one_round(side: NetworkSide) -> dict[str, int]:
    """What the server carries while every worker pushes and pulls every block once."""
    before = side.server_counts()
    side.exchange(push=True, pull=True)
    return difference(side.server_counts(), before)


def spread(values: list[float]) -> float:
    """How far the largest is above the smallest."""
    return max(values) / min(values) - 1


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    groups, rate_bits, rounds = ((1, 4), 200e6, 1) if options.quick else ((1, 2, 4, 8), 200e6, 2)

    def measure() -> dict[str, Any]:
        found = {workers: measure_group(workers, rate_bits, rounds, options.repeats) for workers in groups}
        rows = [
            [workers, where, *(group[where][kind] / 1e6 for kind in (*KINDS, "tcp")), ratio_of(group[where])]
            for workers, group in found.items()
            for where in ("limited", "unlimited")
        ]
        table(["N", "links", *(f"{kind} MB/s" for kind in (*KINDS, "tcp")), "both/one"], rows)
        table(["N", *found[1]["server"]], [[workers, *group["server"].values()] for workers, group in found.items()])
        for workers, group in found.items():
            print(f"N = {workers}, in all: {group['trouble']}")
        grown = {name: spread([group["server"][name] for group in found.values()]) for name in ("packets", "bytes")}
        least = min(ratio_of(group["limited"]) for group in found.values())
        ok = least >= BOTH_OVER_ONE and max(grown.values()) <= SAME
        most = found[groups[-1]]["limited"]
        details = {"rate_bits": rate_bits, "server_grows": grown, "groups": {str(n): g for n, g in found.items()}}
        return result(
            NAME, ours=most["both"] / 1e6, peer=most["tcp"] / 1e6, ratio=least, bar=BAR, ok=ok, unit="MB/s",
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, "MB/s", measure)


def ratio_of(goodput: dict[str, float]) -> float:
    """Both at once over the faster of the two alone."""
    return goodput["both"] / max(goodput["push"], goodput["pull"])


if __name__ == "__main__":
    sys.exit(main())
