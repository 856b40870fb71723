"""Goodput over UDP through queues of 256 frames, against a TCP stream through the same; what is sent again.

Two workers, a switch and a server around an Ethernet switch. A queue of 256 frames is what a port has whose buffer is
small; at the higher rates it is shorter than the wait that a sender takes for a queue, so that only lost packets tell
of it. Packets sent again are those of all participants, of all packets with values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import Options, Row, all_of, arguments, result, run, table
from kit.network_side import Hosts, NetworkSide, difference
from kit.sampling import Bar, Comparison, compare

NAME = "network_queues"
BAR = "queues of 256 frames: at least 0.95 of TCP's goodput, and under 1 % of packets sent again, at every rate"
FRAMES = 256
RATES = {"100 Mb/s": 100e6, "500 Mb/s": 500e6, "1 Gb/s": 1e9}
KINDS = {"push": (True, False), "pull": (False, True)}
WORKERS = 2
BLOCKS, ELEMENTS = 16, 1 << 17
LEAST, MOST_AGAIN = 0.95, 0.01


def sent_again(side: NetworkSide, kind: str) -> dict[str, int]:
    """Return the packets that those who send values have sent again so far, and all but heartbeats that they sent."""
    senders = {"push": (side.switch, *side.workers), "pull": (side.server,)}[kind]
    found = [sender.ask(stats={}) for sender in senders]
    return {
        "again": sum(each.get("resent", 0) + each.get("sums_sent_again", 0) for each in found),
        "sent": sum(each["socket"]["datagrams_sent"] - each["heartbeats_out"] for each in found),
    }


def measure_rate(options: Options, rate: float, share: float) -> tuple[Comparison, dict[str, float]]:
    """Bytes of values a second of pushes and pulls, and bytes of TCP; the share of packets sent again by kind."""
    rounds = options.effort(max(1, round(rate / 200e6)), check=1)
    with Hosts(WORKERS) as hosts, NetworkSide(hosts, [ELEMENTS] * BLOCKS, echo=False) as side:
        hosts.limit(rate, frames=FRAMES)
        for push, pull in KINDS.values():
            side.exchange(push=push, pull=pull, rounds=rounds)  # they find the rate
        counted = {kind: {"again": 0, "sent": 0} for kind in KINDS}

        def take_round() -> dict[str, float]:
            values = {"tcp": hosts.tcp_bytes_per_second(options.effort(1.0, check=0.2))}
            for kind, (push, pull) in KINDS.items():
                before = sent_again(side, kind)
                values[kind] = side.goodput(push=push, pull=pull, rounds=rounds)
                for name, count in difference(sent_again(side, kind), before).items():
                    counted[kind][name] += count
            return values

        bars = [Bar(kind, "tcp", LEAST) for kind in KINDS]
        compared = compare(
            options, take_round, bars, rounds=max(5, options.repeats), family=len(bars) * len(RATES), share=share
        )
    return compared, {kind: count["again"] / count["sent"] for kind, count in counted.items()}


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for rate, moved in found["bytes_per_second"].items():
        again = max(found["sent_again"][rate].values())
        yield (
            f"goodput through queues of {FRAMES} frames at {rate}",
            f"push {moved['push'] / 1e6:.1f} MB/s, pull {moved['pull'] / 1e6:.1f}; {again:.1%} sent again",
            f"a TCP stream {moved['tcp'] / 1e6:.1f} MB/s",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    rates = options.size(RATES, check={"100 Mb/s": RATES["100 Mb/s"]})

    def measure() -> dict[str, Any]:
        compared, again = {}, {}
        for number, (name, rate) in enumerate(rates.items()):
            compared[name], again[name] = measure_rate(options, rate, 1 / (len(rates) - number))
        table(
            ["rate", "kind", "MB/s", "of TCP", "% sent again"],
            [
                [name, kind, found.medians[kind] / 1e6, found.ratio(Bar(kind, "tcp", LEAST)), 100 * again[name][kind]]
                for name, found in compared.items() for kind in KINDS
            ],
        )  # fmt: skip
        worst = min(found.ratio(Bar(kind, "tcp", LEAST)) for found in compared.values() for kind in KINDS)
        few = max(share for kinds in again.values() for share in kinds.values()) < MOST_AGAIN
        details = {
            "bytes_per_second": {name: found.medians for name, found in compared.items()}, "sent_again": again,
            "compared": {name: found.details() for name, found in compared.items()},
        }  # fmt: skip
        return result(
            NAME, ours=worst, peer=1.0, bar=BAR, ok=all_of(few, *(found.ok for found in compared.values())),
            unit="of TCP's goodput, at worst", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "of TCP's goodput, at worst", measure, options)


if __name__ == "__main__":
    sys.exit(main())
