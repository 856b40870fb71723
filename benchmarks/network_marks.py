"""Time that packets wait in a queue that marks packets (ECN), against the same queue without marks; goodput of both.

Two workers, a switch and a server around an Ethernet switch whose queues are long. One that marks does so while more
than 64 frames wait, as a data center's switches do. A datagram goes from the server's host to a worker's and back every
few milliseconds, and meets the queues of pulls on its way there, of pushes on its way back.
"""

from __future__ import annotations

import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from kit.common import NotInstalledError, Options, Row, all_of, arguments, result, run, table
from kit.network_side import Hosts, NetworkSide
from kit.sampling import Bar, Comparison, compare

from harness.network import NetworkUnavailableError

NAME = "network_marks"
BAR = "queues that mark packets: they wait half as long at most, at 0.95 of the goodput at least"
UNIT = "ms that a packet waits there and back"
RATES = {"500 Mb/s": 500e6, "1 Gb/s": 1e9}
KINDS = {"push": (True, False), "pull": (False, True)}
WORKERS = 2
BLOCKS, ELEMENTS = 16, 1 << 17
MOST_WAIT, LEAST_GOODPUT = 0.5, 0.95
PAUSE_SECONDS = 0.003
TIME = struct.Struct("<d")


class RoundTrips:
    """Times of datagrams from the server's host to the first worker's and back, while it is entered."""

    def __init__(self, hosts: Hosts) -> None:
        with hosts.workers[0].inside():
            self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._far.bind((hosts.workers[0].address, 0))
        with hosts.server.inside():
            self._near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._near.connect(self._far.getsockname())
        self._near.settimeout(0.2)
        self._far.settimeout(0.2)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._answer, self._ask)]
        self.seconds: list[float] = []

    def __enter__(self) -> RoundTrips:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._near.close()
        self._far.close()

    def _answer(self) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                self._far.sendto(*self._far.recvfrom(TIME.size))

    def _ask(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            self._near.send(TIME.pack(time.monotonic()))
            with suppress(TimeoutError):
                (sent,) = TIME.unpack(self._near.recv(TIME.size))
                self.seconds.append(time.monotonic() - sent)


def name_of(kind: str, what: str, *, marks: bool) -> str:
    """Return the name of a measured value."""
    return f"{kind}, {what}, {'marked' if marks else 'unmarked'}"


def bars() -> list[Bar]:
    """Return what is asked of each kind: the wait and the goodput with marks, over those without."""
    return [
        bar
        for kind in KINDS
        for bar in (
            Bar(name_of(kind, "MB/s", marks=True), name_of(kind, "MB/s", marks=False), LEAST_GOODPUT),
            Bar(name_of(kind, "waits less", marks=True), name_of(kind, "waits less", marks=False), 1 / MOST_WAIT),
        )
    ]


def measure_rate(options: Options, rate: float, share: float) -> tuple[Comparison, dict[str, float]]:
    """Goodput and waits at a rate, with marks and without in turn; and the median waits in ms."""
    rounds = options.effort(max(1, round(rate / 200e6)), check=1)
    waits: dict[str, list[float]] = {}
    with Hosts(WORKERS) as hosts, NetworkSide(hosts, [ELEMENTS] * BLOCKS, echo=False) as side:
        hosts.limit(rate)

        def take_round() -> dict[str, float]:
            values = {}
            for marks in (False, True):
                hosts.mark(rate) if marks else hosts.unmark()
                for kind, (push, pull) in KINDS.items():
                    side.exchange(push=push, pull=pull, rounds=rounds)  # they find the rate
                    with RoundTrips(hosts) as trips:
                        values[name_of(kind, "MB/s", marks=marks)] = side.goodput(push=push, pull=pull, rounds=rounds)
                    wait = statistics.median(trips.seconds)
                    waits.setdefault(name_of(kind, "ms", marks=marks), []).append(1000 * wait)
                    values[name_of(kind, "waits less", marks=marks)] = 1 / wait
            return values

        wanted = bars()
        compared = compare(
            options, take_round, wanted, rounds=max(5, options.repeats), family=len(wanted) * len(RATES), share=share
        )
    return compared, {name: statistics.median(each) for name, each in waits.items()}


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for rate, waits in found["milliseconds"].items():
        for kind in KINDS:
            yield (
                f"{kind} through queues that mark packets, {rate}",
                f"a packet waits {waits[name_of(kind, 'ms', marks=True)]:.1f} ms",
                f"without marks {waits[name_of(kind, 'ms', marks=False)]:.1f} ms",
            )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    rates = options.size(RATES, check={"500 Mb/s": RATES["500 Mb/s"]})

    def measure() -> dict[str, Any]:
        compared, waits = {}, {}
        for number, (name, rate) in enumerate(rates.items()):
            try:
                compared[name], waits[name] = measure_rate(options, rate, 1 / (len(rates) - number))
            except NetworkUnavailableError as error:
                raise NotInstalledError(str(error)) from error
        table(
            ["rate", "kind", "marks", "MB/s", "waits ms"],
            [
                [rate, kind, "yes" if marks else "no", found.medians[name_of(kind, "MB/s", marks=marks)] / 1e6,
                 waits[rate][name_of(kind, "ms", marks=marks)]]
                for rate, found in compared.items() for kind in KINDS for marks in (False, True)
            ],
        )  # fmt: skip
        pairs = [
            [each[name_of(kind, "ms", marks=marks)] for marks in (True, False)] for each in waits.values()
            for kind in KINDS
        ]  # fmt: skip
        ours, peer = max(pairs, key=lambda pair: pair[0] / pair[1])
        details = {"milliseconds": waits, "compared": {name: found.details() for name, found in compared.items()}}
        ok = all_of(*(found.ok for found in compared.values()))
        return result(NAME, ours=ours, peer=peer, bar=BAR, ok=ok, unit=UNIT, details=details)

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
