"""Summing a 64 MiB float32 block of N workers over a network and giving all the mean: luwu over UDP against gloo.

Both sides run in the same network namespaces. luwu pushes and pulls the block in pieces, so that both directions are
busy at once. Links are limited as a cluster's are; without limits, N hosts share this machine's processors, and what is
measured is what the two cost there.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from kit.common import Options, Row, all_of, arguments, result, run, table
from kit.network_side import Hosts, NetworkSide, lost
from kit.processes import Side, slowest
from kit.sampling import Bar, Comparison, compare, in_turn

NAME = "network_aggregate"
BAR = "on limited links faster than both of gloo's ways at every N, and the lead over all-reduce grows with N"
GLOO = ("all_reduce", "reduce_scatter_all_gather")
OURS = ("int32", "int16")
MTU = 9000
PIECE_ELEMENTS = 1 << 16
BARS = [Bar(way, "int32", 1.0) for way in GLOO]


def measure_group(
    options: Options, elements: int, ranks: int, rate_bits: float, share: float
) -> tuple[Comparison, dict[str, dict[str, float]]]:
    """Compare on limited links at one number of workers; also returns every way's medians there and without limits.

    `share`: the part of the time that is left which --quick may take.
    """
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(ranks, mtu=MTU))
        gloo = stack.enter_context(
            Side(
                "gloo",
                "peers/gloo_collectives.py",
                {"elements": elements},
                ranks=ranks,
                python=options.peer_python(),
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
        found = {}
        for where in ("limited", "unlimited"):
            hosts.limit(rate_bits) if where == "limited" else hosts.unlimit()
            for side in sides.values():
                side.exchange(push=True, pull=True)  # finds the rate
            tcp = hosts.tcp_bytes_per_second(0.5)
            bars = BARS if where == "limited" and sides else []
            rounds = max(3, options.repeats)
            found[where] = compare(options, in_turn(measures), bars, rounds=rounds, share=share), tcp
        for form, side in sides.items():
            print(f"N = {ranks}, {form}, in all: {lost(side.stats())}, overflows {hosts.overflows()}")
        times = {where: {**found.medians, "tcp_bytes_per_second": tcp} for where, (found, tcp) in found.items()}
        return found["limited"][0], times


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    size = f"{4 * found['elements'] >> 20} MiB"
    for ranks, seconds in found["seconds"].items():
        limited = seconds["limited"]
        shown = {name: f"{limited[name]:.2f} s" for name in limited}
        floor = 4 * found["elements"] / limited["tcp_bytes_per_second"]
        yield (
            f"{size} summed for {ranks} workers over links of {found['rate_bits'] / 1e6:.0f} Mb/s, and given to all",
            shown["int32"],
            f"gloo all-reduce {shown['all_reduce']}, in two halves {shown['reduce_scatter_all_gather']}; "
            f"the block over one link {floor:.2f} s",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    elements = options.size(1 << 24, quick=1 << 22, check=1 << 17)
    groups = options.size((2, 4, 8), quick=(2, 4), check=(2,))
    rate_bits = 250e6

    def measure() -> dict[str, Any]:
        compared, found = [], {}
        for number, ranks in enumerate(groups):
            limited_links, found[ranks] = measure_group(
                options, elements, ranks, rate_bits, share=0.7 / (len(groups) - number)
            )
            compared.append(limited_links)
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
        ahead = all_of(*(comparison.ok for comparison in compared))
        grows = all(after > before for before, after in itertools.pairwise(leads))
        details["leads"] = leads
        return result(
            NAME, ours=limited[-1]["int32"], peer=limited[-1][GLOO[0]], ratio=leads[-1], bar=BAR,
            ok=all_of(ahead, grows),
            unit="seconds", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "seconds", measure, options)


if __name__ == "__main__":
    sys.exit(main())
