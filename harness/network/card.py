"""Links that hand frames over as network cards do (the program is harness/network/native/card.bpf.c)."""

from __future__ import annotations

from harness.network import devices
from harness.network.namespaces import command
from harness.network.nodes import End, Node
from harness.network.programs import built

NUMBERS = {"a": 10, "b": 11}  # of the interfaces in a link's middle: the program finds one from the other


def attach_cards(node: Node, ends: tuple[End, End]) -> None:
    """Let frames go from each of the node's two interfaces to the other, without its stack, and on to both ends.

    Raises:
        NetworkUnavailableError: the program was not built.
    """
    program = built("card.bpf.o")
    for end in ends:
        with end.node.inside():
            devices.enable_gro(end.interface)
    for interface in NUMBERS:
        with node.inside():
            devices.enable_gro(interface)
        node.thread(interface)  # or the work is done, and counted, where frames come from
        command("ip", "-n", node.namespace, *f"link set dev {interface} xdpdrv obj {program} sec xdp".split())
