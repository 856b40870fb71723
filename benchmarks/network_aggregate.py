"""Summing a 64 MiB float32 block of N workers over a network and giving all the mean: luwu over UDP against gloo.

Both sides run in the same network namespaces. luwu pushes and pulls the block in pieces, so that both directions are
busy at once. Links are limited as a cluster's are; without limits, N hosts share this machine's processors, and what is
measured is what the two cost there.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import ExitStack
from typing import Any

from common import arguments, median_alternating, require_peers, result, run, table
from network_side import Hosts, NetworkSide, lost
from processes import Side, slowest

NAME = "network_aggregate"
BAR = "on limited links faster than both of gloo's ways at every N, and the lead over all-reduce grows with N"
GLOO = ("all_reduce", "reduce_scatter_all_gather")
OURS = ("int32", "int16")
MTU = 9000
PIECE_ELEMENTS = 1 << 16


def group_times(elements: int, ranks: int, rate_bits: float, options: Any) -> dict[str, dict[str, float]]:
    """Seconds of every way at one number of workers, on limited links and without limits."""
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(ranks, mtu=MTU))
        gloo = stack.enter_context(
            Side(
                "gloo",
                "peers/gloo_collectives.py",
                {"elements": elements},
                ranks=ranks,
                python=require_peers(),
                threads=1,
                env={"GLOO_SOCKET_IFNAME": "eth0"},
                hosts=hosts.workers,
            )
        )
        gloo.wait_ready()
        measures = {kind: lambda kind=kind: slowest(gloo.sample(), kind) for kind in GLOO}
        pieces = [PIECE_ELEMENTS] * (elements // PIECE_ELEMENTS)
        sides = {}
        for form in () if options.only_peer else OURS:
            sides[form] = stack.enter_context(NetworkSide(hosts, pieces, echo=True, form=form))
            measures[form] = lambda side=sides[form]: side.exchange(push=True, pull=True)
        times = {}
        for where in ("limited", "unlimited"):
            hosts.limit(rate_bits) if where == "limited" else hosts.unlimit()
            for side in sides.values():
                side.exchange(push=True, pull=True)  # finds the rate
            tcp = hosts.tcp_bytes_per_second(0.5)
            times[where] = {**median_alternating(measures, options.repeats), "tcp_bytes_per_second": tcp}
        for form, side in sides.items():
            print(f"N = {ranks}, {form}, in all: {lost(side.stats())}, overflows {hosts.overflows()}")
        return times


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    elements, groups, rate_bits = ((1 << 22), (2, 4), 250e6) if options.quick else ((1 << 24), (2, 4, 8), 250e6)

    def measure() -> dict[str, Any]:
        found = {ranks: group_times(elements, ranks, rate_bits, options) for ranks in groups}
        ways = [*GLOO, *(() if options.only_peer else OURS)]
        rows = [
            [ranks, where, *(1000 * times[where][way] for way in ways), times[where]["tcp_bytes_per_second"] / 1e6]
            for ranks, times in found.items()
            for where in times
        ]
        table(["N", "links", *(f"{way} ms" for way in ways), "tcp MB/s"], rows)
        details = {
            "elements": elements,
            "rate_bits": rate_bits,
            "seconds": {str(n): times for n, times in found.items()},
        }
        limited = [found[ranks]["limited"] for ranks in groups]
        if options.only_peer:
            return result(
                NAME, ours=None, peer=limited[-1][GLOO[0]], bar=BAR, ok=False, unit="seconds", details=details
            )
        leads = [times[GLOO[0]] / times["int32"] for times in limited]
        ahead = all(times[way] > times["int32"] for times in limited for way in GLOO)
        grows = all(after > before for before, after in itertools.pairwise(leads))
        details["leads"] = leads
        return result(
            NAME, ours=limited[-1]["int32"], peer=limited[-1][GLOO[0]], ratio=leads[-1], bar=BAR, ok=ahead and grows,
            unit="seconds", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "seconds", measure)


if __name__ == "__main__":
    sys.exit(main())
