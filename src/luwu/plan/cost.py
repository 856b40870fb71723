"""Cost of a run: prices and watts of the parts, and tokens for a dollar and a watt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luwu.plan.clusters import Cluster
from luwu.plan.networks import SWITCHES, Network, SwitchModel, Topology, build_network

LIFETIME_YEARS = 4
"""Years over which a machine is paid for, as clouds write servers off in 4 to 6 years."""

ELECTRICITY_PER_KWH = 0.10
COOLING = 1.3
"""Watts that a hall takes for each watt of its machines (PUE; Uptime Institute has 1.2 to 1.6)."""

# List and street prices, US dollars, 2023 and 2024, from memory and checked nowhere; --prices replaces them.
PRICES: dict[str, float] = {
    "a100-40gb-pcie3": 8_000,
    "a100-40gb-pcie": 8_000,
    "a100-80gb-pcie": 14_000,
    "a100-40gb-sxm": 11_000,
    "a100-80gb-sxm": 15_000,
    "h100-80gb-pcie": 25_000,
    "h100-80gb-sxm": 30_000,
    "h200-141gb-sxm": 35_000,
    "v100-32gb-sxm": 3_000,
    "l40s": 8_000,
    "rtx-3090": 1_000,
    "rtx-4090": 1_800,
    "disk": 400,  # 2 to 4 TB
    "host": 2_500,
    "host, 8 GPUs": 70_000,  # board with NVSwitch, two processors, 1 TB
    "network card": 800,
    "cable": 100,
    "server": 10_000,
}


@dataclass(frozen=True)
class Cost:
    """Cost: what has to be paid, by part, and the power that is drawn."""

    parts: Mapping[str, float]
    watts: float
    disk_sets: float = 1.0
    """number of times that the disks are bought in `LIFETIME_YEARS`"""

    @property
    def price(self) -> float:
        """Dollars of all parts together."""
        return sum(self.parts.values())

    def with_worn_disks(self, life_days: float | None) -> Cost:
        """Return the cost with disks bought anew when they are worn out, over the life of the machines.

        Args:
            life_days: days after which a disk is worn out; None: it is not, before the machine is written off.
        """
        sets = 1.0 if life_days is None else max(1.0, 365 * LIFETIME_YEARS / life_days)
        if sets == 1.0 or "disks" not in self.parts:
            return self
        return Cost({**self.parts, "disks": sets * self.parts["disks"]}, self.watts, sets)

    def dollars_for(self, days: float) -> float:
        """Return the dollars of a run: its share of the machines' life, and electricity."""
        owned = self.price * days / (365 * LIFETIME_YEARS)
        return owned + self.watts * COOLING / 1000 * 24 * days * ELECTRICITY_PER_KWH


def fitting_switch(rate: float) -> SwitchModel:
    """The slowest switch whose ports carry a link of this rate, or the fastest of all."""
    good = [switch for switch in SWITCHES.values() if switch.port_rate >= rate]
    fastest = max(SWITCHES.values(), key=lambda switch: switch.port_rate)
    return min(good, key=lambda switch: switch.port_rate, default=fastest)


def cost_of(
    cluster: Cluster,
    *,
    topology: Topology = "tree",
    with_servers: bool = True,
    prices: Mapping[str, float] | None = None,
) -> Cost:
    """Return price and power of a cluster with its network; a machine that is there already costs its power alone.

    Args:
        cluster: cluster to buy.
        topology: topology of the network.
        with_servers: LuWu's servers, too; its peers need none.
        prices: prices that replace those of `PRICES`.
    """
    if cluster.one_machine:
        disks = cluster.server.disks * cluster.server.disk.watts
        return Cost({}, cluster.workers * cluster.gpu.watts + cluster.host.watts + disks)
    prices = PRICES | dict(prices or {})
    servers = cluster.servers if with_servers else 0
    network = network_of(cluster, topology, servers)
    switch = fitting_switch(cluster.link_rate)
    host = "host" if cluster.host.gpus == 1 else "host, 8 GPUs"
    disks = servers * cluster.server.disks + cluster.hosts * cluster.host.disks * (0 if with_servers else 1)
    links = cluster.workers + servers
    parts = {
        "GPUs": cluster.workers * prices[cluster.gpu.name],
        "hosts": cluster.hosts * prices[host],
        "network cards": links * prices["network card"],
        "switches and cables": network.switches * switch.price + network.cables * prices["cable"],
        "servers": servers * prices["server"],
        "disks": disks * prices["disk"],
    }
    disk = cluster.server.disk.watts if with_servers else (cluster.host.disk.watts if cluster.host.disk else 0.0)
    watts = (
        cluster.workers * cluster.gpu.watts
        + cluster.hosts * cluster.host.watts
        + servers * cluster.server.watts
        + network.switches * switch.watts
        + disks * disk
    )
    return Cost({name: price for name, price in parts.items() if price}, watts)


def network_of(cluster: Cluster, topology: Topology, servers: int) -> Network:
    """The network of a cluster's links; ConfigError where they do not fit."""
    rails = cluster.host.gpus
    ends = cluster.workers + servers
    if topology == "rail_only":
        ends = -(-ends // rails) * rails
    return build_network(topology, ends, fitting_switch(cluster.link_rate), rails)
