"""A machine that is an Ethernet bridge with an address: where an XDP switch has a port for every neighbour."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.network import devices
from harness.network.network import Network
from harness.network.nodes import End, Host
from harness.network.processes import Process

BRIDGE_ADDRESS = "10.77.0.254"


def bridge_host(
    net: Network, names: Sequence[str], *, behind_one_port: Sequence[str] = (), wired: Sequence[str] = ()
) -> tuple[Host, list[str]]:
    """Make these hosts around such a machine; returns it and its ports.

    Args:
        net: to be added to.
        names: hosts with a port each.
        behind_one_port: hosts on another bridge, which has one port for all of them.
        wired: those of `names` whose links have a wire.
    """
    net.star(*names, switch="middle", wired=wired)
    bridge = net.switch("middle")
    if behind_one_port:
        net.switch("below")
        net.star(*behind_one_port, switch="below")
        net.link("below", "middle")
    bridge.ip(f"addr add {BRIDGE_ADDRESS}/24 dev br0")
    host = Host("middle", bridge.namespace, net.folder)
    host.ends.append(End(host, "br0", BRIDGE_ADDRESS))
    for link in net.links:
        for end in (link.a, link.b):
            with end.node.inside():
                devices.enable_gro(end.interface)
    ports = [end.interface for link in bridge.links for end in (link.a, link.b) if end.node is bridge]
    return host, ports


def counted(switch: Process, what: str) -> int:
    """Return a count of the kernel over all runs of a `luwu switch` that has ended."""
    return sum(map(int, re.findall(rf"in the kernel .*{what}=(\d+)", switch.output())))
