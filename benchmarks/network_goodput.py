"""Goodput over UDP of 1 to 8 workers: pushing, pulling, and both at once; what the server carries does not grow with N.

Each participant has a network namespace of its own. The bar is measured where each host's link is limited, so that
the links are what limits and not the processors; the goodput without limits stands beside a plain TCP stream.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Options, Row, all_of, arguments, result, run, table
from kit.network_side import Hosts, NetworkSide, difference, lost
from kit.sampling import Bar, Comparison, compare, in_turn

NAME = "network_goodput"
BAR = "on limited links both at once at least 1.7x the faster alone; server bytes and packets the same for any N (2 %)"
SAME = 0.02
BARS = [Bar("both", kind, 1.7) for kind in ("push", "pull")]  # so "both" is compared with the faster one, too
GROUPS = (1, 2, 4, 8)
KINDS = {"push": (True, False), "pull": (False, True), "both": (True, True)}
BLOCKS, ELEMENTS = 16, 1 << 18
MTU = 9000
RATE_BITS = 200e6


def measure_group(options: Options, workers: int, rounds: int, share: float) -> tuple[Comparison, dict[str, Any]]:
    """Compare on limited links; also returns every kind's bytes a second, limited and not, and the server's counts.

    `share`: the part of the time that is left which --quick may take.
    """
    blocks = options.size(BLOCKS, check=1)
    with Hosts(workers, mtu=MTU) as hosts, NetworkSide(hosts, [ELEMENTS] * blocks, echo=False) as side:

        def goodputs(bars: list[Bar]) -> Comparison:
            side.exchange(push=True, pull=True)  # finds the rate
            sides = {
                kind: lambda push=push, pull=pull: side.goodput(push=push, pull=pull, rounds=rounds)
                for kind, (push, pull) in KINDS.items()
            }
            sides["tcp"] = lambda: hosts.tcp_bytes_per_second(0.5)
            family = len(BARS) * len(GROUPS)
            return compare(options, in_turn(sides), bars, rounds=max(3, options.repeats), family=family, share=share)

        hosts.limit(RATE_BITS)
        limited = goodputs(BARS)
        rounds_seen = [one_round(side) for _ in range(options.effort(3, check=1))]
        hosts.unlimit()
        unlimited = goodputs([])
        return limited, {
            "limited": limited.medians,
            "unlimited": unlimited.medians,
            "server": {name: statistics.median(seen[name] for seen in rounds_seen) for name in rounds_seen[0]},
            "trouble": {**lost(side.stats()), "overflows": hosts.overflows()},
        }


def one_round(side: NetworkSide) -> dict[str, int]:
    """Return the bytes that the server carries while every worker pushes and pulls every block once."""
    before = side.server_counts()
    side.exchange(push=True, pull=True)
    return difference(side.server_counts(), before)


def spread(values: list[float]) -> float:
    """Return the distance of the largest above the smallest, as a share."""
    return max(values) / min(values) - 1


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for workers, group in found["groups"].items():
        rates = {kind: f"{rate / 1e6:.1f}" for kind, rate in group["limited"].items()}
        yield (
            f"goodput over UDP, {workers} worker{'s' * (workers != '1')}, links of {found['rate_bits'] / 1e6:.0f} Mb/s",
            f"push {rates['push']}, pull {rates['pull']}, both at once {rates['both']} MB/s",
            f"a TCP stream, one way: {rates['tcp']} MB/s",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    groups = options.size(GROUPS, quick=(1, 4), check=(1, 2))
    rounds = options.effort(2, quick=1, check=1)

    def measure() -> dict[str, Any]:
        compared, found = [], {}
        for number, workers in enumerate(groups):
            limited, found[workers] = measure_group(options, workers, rounds, 0.7 / (len(groups) - number))
            compared.append(limited)
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
        ok = all_of(*(comparison.ok for comparison in compared), max(grown.values()) <= SAME)
        most = found[groups[-1]]["limited"]
        details = {"rate_bits": RATE_BITS, "server_grows": grown, "groups": {str(n): g for n, g in found.items()}}
        return result(
            NAME, ours=most["both"] / 1e6, peer=most["tcp"] / 1e6, ratio=least, bar=BAR, ok=ok, unit="MB/s",
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, "MB/s", measure, options)


def ratio_of(goodput: dict[str, float]) -> float:
    """Both at once over the faster of the two alone."""
    return goodput["both"] / max(goodput["push"], goodput["pull"])


if __name__ == "__main__":
    sys.exit(main())
