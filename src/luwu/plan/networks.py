"""Networks between workers and servers, by the parts to buy: switches, cables, their watts and prices.

| network | how it is wired | published in |
|---|---|---|
| rack | all on one switch | - |
| fat_tree | full bandwidth between any two, two or three tiers | Al-Fares et al., SIGCOMM 2008 |
| rail_only | a switch for each GPU number of all hosts; between numbers through NVLink | arXiv 2307.12169 |
| tree | an aggregation tree: one link up from each switch, as aggregated traffic is no more there | arXiv 2409.00918 |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from luwu.core.errors import ConfigError

Topology = Literal["rack", "fat_tree", "rail_only", "tree"]


@dataclass(frozen=True)
class SwitchModel:
    """An Ethernet switch."""

    ports: int
    port_rate: float
    price: float
    watts: float
    source: str


SWITCHES: dict[str, SwitchModel] = {
    "100g-32": SwitchModel(32, 12.5e9, 12_000, 400, "32 x 100 Gb/s, street price 2023"),
    "200g-32": SwitchModel(32, 25e9, 25_000, 600, "32 x 200 Gb/s, street price 2023"),
    "400g-64": SwitchModel(64, 50e9, 50_000, 1300, "64 x 400 Gb/s, street price 2024"),
    "10g-48": SwitchModel(48, 1.25e9, 2_000, 100, "48 x 10 Gb/s, street price 2023"),
}


@dataclass(frozen=True)
class Network:
    """Parts to buy for a number of ends, and the number of switches between the farthest of them."""

    topology: Topology
    switches: int
    cables: int
    tiers: int


def build_network(topology: Topology, ends: int, switch: SwitchModel, rails: int = 1) -> Network:
    """Count switches and cables.

    Args:
        topology: wiring of the network.
        ends: links of workers and servers.
        switch: switch model of all tiers.
        rails: GPUs of a host, for ``rail_only``.

    Raises:
        ConfigError: the ends do not fit; the message has the largest number.
    """
    ports = switch.ports
    if topology == "rack":
        _check(ends, ports, topology)
        return Network(topology, 1, ends, 1)
    if topology == "rail_only":
        if ends % rails:
            raise ConfigError(f"rail_only: expected whole hosts of {rails} links, found {ends}")
        rail = build_network("fat_tree", ends // rails, switch)
        return Network(topology, rail.switches * rails, rail.cables * rails, rail.tiers)
    if topology == "tree":
        return _tree(ends, ports)
    if ends <= ports:
        return Network(topology, 1, ends, 1)
    if ends <= ports**2 // 2:
        leaves = math.ceil(ends / (ports // 2))
        return Network(topology, leaves + math.ceil(leaves / 2), 2 * ends, 2)
    _check(ends, ports**3 // 4, topology)
    leaves = math.ceil(ends / (ports // 2))
    return Network(topology, 2 * leaves + math.ceil(leaves / 2), 3 * ends, 3)


def _tree(ends: int, ports: int) -> Network:
    """Each switch has one link up, and the root none."""
    switches, cables, tiers, below = 0, 0, 0, ends
    while True:
        cables += below
        tiers += 1
        if below <= ports:
            return Network("tree", switches + 1, cables, tiers)
        below = math.ceil(below / (ports - 1))
        switches += below


def _check(ends: int, most: int, topology: str) -> None:
    if ends > most:
        raise ConfigError(
            f"{topology}: expected at most {most} links with these switches, found {ends}; "
            "take another topology or larger switches"
        )
