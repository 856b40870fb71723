"""Goodput of 4 workers that push and pull at once, through a switch in the kernel and through one in user space.

Both in the same network namespaces: the switch's machine is an Ethernet bridge with an address and a port for every
neighbour. What its ports receive is worked on by kernel threads (threaded NAPI), so that the processor time of its
machine is known: theirs and the switch's process's. The bar is on goodput per second of that time, where the ports are
given frames as network cards give them (harness/network/card.py). With veths alone, where the time to copy each frame
for XDP is counted too, the figures stand beside, for frames of 1500 bytes and of 9000, which come to the program by way
of the kernel's stack. No card segments or computes checksums here, which some do.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kit.common import NotInstalledError, Options, Row, arguments, result, run, table
from kit.network_side import Hosts, NetworkSide, lost
from kit.sampling import Bar, Comparison, compare

from harness.network import Network, NetworkUnavailableError
from harness.network.xdp import bridge_host

NAME = "xdp_goodput"
BAR = "through XDP at least 2x the goodput for each second of the switch machine's processor time"
WORKERS, BLOCKS, ELEMENTS = 4, 16, 1 << 18
SAMPLES = 7  # of each side: single ratios differ by a fifth, as the kernel chooses who runs when
SIDES = ("user space", "XDP")
LEAST = Bar("XDP", "user space", 2.0)
PER_SECOND = "MB a CPU second"
COLUMNS = ("MB/s", PER_SECOND, "CPU s a GB")
FRAMES = {"cards": "1500, as cards", "veth": "1500, as veth alone", "jumbo": "9000, as veth alone"}


class BridgeHosts(Hosts):
    """Hosts around a machine that is a bridge and the switch; `frames`: one of `FRAMES`."""

    def __init__(self, workers: int, frames: str) -> None:
        self._stack = ExitStack()
        self.mtu = 9000 if frames == "jumbo" else 1500
        try:
            network = self._stack.enter_context(Network(mtu_bytes=self.mtu, cards=frames == "cards"))
        except NetworkUnavailableError as error:
            raise NotInstalledError(str(error)) from error
        with ExitStack() as undo:
            undo.push(self._stack.__exit__)
            names = [f"w{rank}" for rank in range(workers)]
            self.switch, self.ports = bridge_host(network, ["server", *names])
            self.server, self.workers = network["server"], [network[name] for name in names]
            for host in (self.server, *self.workers):  # a queue in front of the cable, which a veth has none of
                host.tc("qdisc add dev eth0 root pfifo limit 2000")
                host.thread("eth0")  # or others' work would be counted as the switch's
            for port in self.ports:
                self.switch.thread(port)
            undo.pop_all()

    def receiving_seconds(self) -> float:
        """Processor time so far of the threads that work on what the switch's ports receive."""
        nanoseconds = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                name = (folder / "comm").read_text()
                if any(name.startswith(f"napi/{port}-") for port in self.ports):
                    nanoseconds += int((folder / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
        return nanoseconds / 1e9


def measure_side(
    options: Options, hosts: BridgeHosts, in_kernel: bool, rounds: int
) -> tuple[dict[str, float], dict[str, int]]:
    """Return a sample: goodput, and goodput for each second of the switch machine's time; and what was sent twice."""
    interfaces = hosts.ports if in_kernel else None
    blocks = [ELEMENTS] * options.effort(BLOCKS, check=1)
    with NetworkSide(hosts, blocks, echo=False, interfaces=interfaces) as side:
        side.exchange(push=True, pull=True)  # finds the rate
        before = hosts.receiving_seconds() + side.switch.ask(stats={})["cpu_seconds"]
        seconds = side.exchange(push=True, pull=True, rounds=rounds)
        used = hosts.receiving_seconds() + side.switch.ask(stats={})["cpu_seconds"] - before
        moved = 2 * rounds * side.bytes * len(hosts.workers)
        found = {"MB/s": moved / seconds / 1e6, PER_SECOND: moved / used / 1e6, "CPU s a GB": used / moved * 1e9}
        return found, lost(side.stats())


def measure_sides(options: Options, frames: str, workers: int, rounds: int) -> tuple[Comparison, dict[str, Any]]:
    """Compare both switches in turn in the same namespaces; also returns each one's medians and the ratios'."""
    samples: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    troubles = {}
    with BridgeHosts(workers, frames) as hosts:

        def take_round() -> dict[str, float]:
            for side in SIDES:
                found, troubles[side] = measure_side(options, hosts, side == "XDP", rounds)
                samples[side].append(found)
            return {side: found[-1][PER_SECOND] for side, found in samples.items()}

        repeats = max(SAMPLES, options.repeats) if frames == "cards" else 3
        compared = compare(options, take_round, [LEAST], rounds=repeats)
    medians = {side: {name: statistics.median(of[name] for of in samples[side]) for name in COLUMNS} for side in SIDES}
    ratios = [LEAST.ratio(found) for found in compared.rounds]
    rows = [[side, FRAMES[frames], *(medians[side][name] for name in COLUMNS)] for side in SIDES]
    table(["switch", "frames", *COLUMNS], rows)
    print(f"ratios: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; of the last samples: {troubles}")
    return compared, {"medians": medians, "ratios": ratios, "ratio": compared.ratio(LEAST), "troubles": troubles}


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    kinds = {
        "cards": "frames as network cards give them",
        "veth": "virtual interfaces alone",
        "jumbo": "virtual interfaces alone, frames of 9000 bytes",
    }
    for key, frames in kinds.items():
        shown = {
            name: f"{side['MB a CPU second']:.0f} MB for a second of its processors, {side['MB/s']:.0f} MB/s"
            for name, side in found[key]["medians"].items()
        }
        yield (
            f"4 workers through a switch inside the kernel; {frames}",
            shown["XDP"],
            f"in user space {shown['user space']}",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    workers, rounds = options.size(WORKERS, check=2), options.effort(8, quick=3, check=1)
    kinds = options.effort(tuple(FRAMES), quick=("cards",), check=tuple(FRAMES))

    def measure() -> dict[str, Any]:
        compared, found = {}, {}
        for frames in kinds:
            compared[frames], found[frames] = measure_sides(options, frames, workers, rounds)
        user, xdp = (found["cards"]["medians"][side][PER_SECOND] for side in SIDES)
        return result(
            NAME, ours=xdp, peer=user, ratio=found["cards"]["ratio"], bar=BAR, ok=compared["cards"].ok,
            unit=PER_SECOND, details=found,
        )  # fmt: skip

    return run(NAME, BAR, PER_SECOND, measure, options)


if __name__ == "__main__":
    sys.exit(main())
