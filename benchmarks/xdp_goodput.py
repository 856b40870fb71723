"""Goodput of 4 workers that push and pull at once, through a switch in the kernel and through one in user space.

Both in the same network namespaces: the switch's machine is an Ethernet bridge with an address and a port for every
neighbour. What its ports receive is worked on by kernel threads (threaded NAPI), so that the processor time of its
machine is known: theirs and the switch's process's. The bar is on goodput per second of that time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import BenchmarkError, arguments, result, run, table
from network_side import Hosts, NetworkSide, lost
from tests.network import Host, Network, NetworkUnavailableError
from tests.network.xdp import bridge_host

NAME = "xdp_goodput"
BAR = "through XDP at least 2x the goodput for each second of the switch machine's processor time"
LEAST = 2.0
WORKERS, BLOCKS, ELEMENTS = 4, 16, 1 << 18
TICKS_A_SECOND = 100


class BridgeHosts(Hosts):
    """Hosts around a machine that is a bridge and the switch."""

    def __init__(self, workers: int) -> None:
        self._stack = ExitStack()
        self.mtu = 1500
        try:
            network = self._stack.enter_context(Network())
        except NetworkUnavailableError as error:
            raise BenchmarkError(str(error)) from error
        with ExitStack() as undo:
            undo.push(self._stack.__exit__)
            names = [f"w{rank}" for rank in range(workers)]
            self.switch, self.ports = bridge_host(network, ["server", *names])
            self.server, self.workers = network["server"], [network[name] for name in names]
            for host in (self.server, *self.workers):  # a queue in front of the cable, which a veth has none of
                host.tc("qdisc add dev eth0 root pfifo limit 2000")
                self._thread(host, "eth0")  # or others' work would be counted as the switch's
            for port in self.ports:
                self._thread(self.switch, port)
            undo.pop_all()

    @staticmethod
    def _thread(host: Host, interface: str) -> None:
        line = f"echo 1 > /sys/class/net/{interface}/threaded"
        subprocess.run(["ip", "netns", "exec", host.namespace, "sh", "-c", line], check=True)

    def receiving_seconds(self) -> float:
        """Processor time so far of the threads that work on what the switch's ports receive."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, fields = path.read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # it has ended
            if any(name.startswith(f"napi/{port}-") for port in self.ports):
                user, system = fields.split()[11:13]
                ticks += int(user) + int(system)
        return ticks / TICKS_A_SECOND


def measure_side(hosts: BridgeHosts, in_kernel: bool, rounds: int, repeats: int) -> dict[str, Any]:
    """Medians of goodput, and of it for each second of the switch machine's time."""
    interfaces = hosts.ports if in_kernel else None
    with NetworkSide(hosts, [ELEMENTS] * BLOCKS, echo=False, interfaces=interfaces) as side:
        side.exchange(push=True, pull=True)  # finds the rate
        found: dict[str, list[float]] = {"MB/s": [], "MB a CPU second": [], "CPU s a GB": []}
        for _ in range(max(3, repeats)):
            before = hosts.receiving_seconds() + side.switch.ask(stats={})["cpu_seconds"]
            seconds = side.exchange(push=True, pull=True, rounds=rounds)
            used = hosts.receiving_seconds() + side.switch.ask(stats={})["cpu_seconds"] - before
            moved = 2 * rounds * side.bytes * WORKERS
            found["MB/s"].append(moved / seconds / 1e6)
            found["MB a CPU second"].append(moved / used / 1e6)
            found["CPU s a GB"].append(used / moved * 1e9)
        trouble = lost(side.stats())
    return {**{name: statistics.median(values) for name, values in found.items()}, "trouble": trouble}


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    rounds = 2 if options.quick else 4

    def measure() -> dict[str, Any]:
        with BridgeHosts(WORKERS) as hosts:
            sides = {
                name: measure_side(hosts, name == "XDP", rounds, options.repeats) for name in ("user space", "XDP")
            }
        columns = ["MB/s", "MB a CPU second", "CPU s a GB"]
        table(["switch", *columns], [[name, *(side[column] for column in columns)] for name, side in sides.items()])
        for name, side in sides.items():
            print(f"{name}, in all: {side['trouble']}")
        ours, peer = sides["XDP"]["MB a CPU second"], sides["user space"]["MB a CPU second"]
        return result(
            NAME, ours=ours, peer=peer, bar=BAR, ok=ours >= LEAST * peer, unit="MB a CPU second", details=sides
        )

    return run(NAME, BAR, "MB a CPU second", measure)


if __name__ == "__main__":
    sys.exit(main())
