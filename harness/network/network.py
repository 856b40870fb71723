"""The network itself: makes namespaces and links, and takes everything away again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from harness.network import devices
from harness.network.card import NUMBERS, attach_cards
from harness.network.errors import NetworkError, NetworkUnavailableError
from harness.network.links import Cable, Link
from harness.network.namespaces import command, missing, prefix, remove, sweep
from harness.network.nodes import End, Host, Node, Switch
from harness.network.wire import Wire

BRIDGE = ("link add name br0 type bridge mcast_snooping 0", "link set dev br0 addrgenmode none", "link set dev br0 up")
FIRST_OWN_SEGMENT = 100  # of links between two hosts; switches have those below


@dataclass(frozen=True)
class Veth:
    """A pair of interfaces, in the namespaces of two nodes."""

    left: tuple[Node, str]
    right: tuple[Node, str]


@dataclass(frozen=True)
class Plan:
    """A link to be made: what it will be, and its parts."""

    a: End
    b: End
    middle: Node | None  # between two hosts, and where a wire or cards are
    wired: bool
    veths: tuple[Veth, ...]


class Network:
    """Hosts and switches in network namespaces, joined by links; gone when the `with` block ends.

    Args:
        mtu_bytes: of every link.
        offloads: leave segmentation and checksums to the (virtual) cards: faster, and not what a cable carries. Wires
            need them off, so they are off at the ends of a wired link in any case.
        cards: links without a wire hand frames over as network cards do, in pages that XDP can take; a veth alone hands
            over socket buffers, which it copies first where an XDP program is. Needs XDP.
        check_checksums: let wires count the frames whose checksums are wrong; costs speed.
        folder: for the logs of processes; by default a temporary one, which goes with the network.

    Raises:
        NetworkUnavailableError: this user or this machine cannot have networks; says why.
    """

    def __init__(
        self,
        mtu_bytes: int = 1500,
        offloads: bool = False,
        cards: bool = False,
        check_checksums: bool = False,
        folder: Path | None = None,
    ) -> None:
        reason = missing()
        if reason is not None:
            raise NetworkUnavailableError(reason)
        sweep()
        self.mtu_bytes = mtu_bytes
        self.links: list[Link] = []
        self._offloads = offloads
        self._cards = cards
        self._check_checksums = check_checksums
        self._prefix = prefix()
        self._nodes: dict[str, Node] = {}
        self._members: dict[int, int] = {}  # by segment, how many addresses are given
        self._own_segments = 0
        self._resources = ExitStack()
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="luwu-network-"))
            self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._resources.callback(self._remove_namespaces)

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        node = self._nodes[name]
        if not isinstance(node, Host):
            raise NetworkError(f"{node} is not a host")
        return node

    def host(self, name: str) -> Host:
        """Find a host, or make it."""
        if name not in self._nodes:
            self._make_namespaces([Host(name, self._prefix + name, self.folder)])
        return self[name]

    def switch(self, name: str = "switch", segment: int = 0) -> Switch:
        """Find a switch, or make it; its hosts get addresses 10.77.SEGMENT.x."""
        if name not in self._nodes:
            self._make_namespaces([Switch(name, self._prefix + name, segment)])
        node = self._nodes[name]
        if not isinstance(node, Switch):
            raise NetworkError(f"{node} is not a switch")
        return node

    def star(self, *hosts: str, switch: str = "switch", wired: bool | Collection[str] = False) -> list[Host]:
        """Join hosts to a switch, making what does not exist yet; `wired` may name those whose links have a wire."""
        self.switch(switch)
        self._make_namespaces(
            [Host(name, self._prefix + name, self.folder) for name in hosts if name not in self._nodes]
        )
        wires = set(hosts if wired is True else wired or ())
        self._make_links([self._plan(name, switch, name in wires) for name in hosts])
        return [self[name] for name in hosts]

    def link(self, a: str, b: str, wired: bool = False) -> Link:
        """Join two nodes; makes a host of a name that does not exist yet. Two hosts get addresses of their own."""
        for name in (a, b):
            if name not in self._nodes:
                self.host(name)
        return self._make_links([self._plan(a, b, wired)])[0]

    def link_between(self, a: str, b: str) -> Link:
        """Find the link that joins two nodes."""
        for link in self.links:
            if {link.a.node.name, link.b.node.name} == {a, b}:
                return link
        raise NetworkError(f"there is no link between {a} and {b}")

    def report(self) -> str:
        """Return the state of every process, and the ends of their outputs."""
        hosts = [node for node in self._nodes.values() if isinstance(node, Host)]
        return "\n".join(process.report() for host in hosts for process in host.processes)

    def close(self) -> None:
        """End all processes, and remove everything."""
        for node in self._nodes.values():
            for process in node.processes if isinstance(node, Host) else ():
                process.stop()
        for link in self.links:
            if link.wire is not None:
                link.wire.hang_up()  # all at once
        self._resources.close()

    def _remove_namespaces(self) -> None:
        remove([node.namespace for node in self._nodes.values()])

    def _make_namespaces(self, nodes: Sequence[Node]) -> None:
        self._nodes |= {node.name: node for node in nodes}  # first: what is made halfway is removed, too
        command("ip", "-batch", "-", lines=[f"netns add {node.namespace}" for node in nodes])
        for node in nodes:
            node.ip("link set lo up", *(BRIDGE if isinstance(node, Switch) else ()))

    def _plan(self, a: str, b: str, wired: bool) -> Plan:
        nodes = self._nodes[a], self._nodes[b]
        between_hosts = isinstance(nodes[0], Host) and isinstance(nodes[1], Host)
        segment = next((node.segment for node in nodes if isinstance(node, Switch)), None)
        if segment is None:
            segment = FIRST_OWN_SEGMENT + self._own_segments
            self._own_segments += 1
        left, right = self._end(nodes[0], b, segment), self._end(nodes[1], a, segment)
        if not (wired or between_hosts or self._cards):
            pair = Veth((left.node, left.interface), (right.node, right.interface))
            return Plan(left, right, None, False, (pair,))
        name = f"{a}--{b}"
        middle = Node(name, self._prefix + name)
        pairs = (
            Veth((left.node, left.interface), (middle, "a")),
            Veth((right.node, right.interface), (middle, "b")),
        )
        return Plan(left, right, middle, wired, pairs)

    def _end(self, node: Node, neighbour: str, segment: int) -> End:
        if not isinstance(node, Host):
            return End(node, f"to-{neighbour}"[:15])
        number = self._members[segment] = self._members.get(segment, 0) + 1
        end = End(node, f"eth{len(node.ends)}", f"10.77.{segment}.{number}", f"fd77::{segment:x}:0:0:{number:x}")
        node.ends.append(end)
        return end

    def _make_links(self, plans: Sequence[Plan]) -> list[Link]:
        self._make_namespaces([plan.middle for plan in plans if plan.middle is not None])
        veths = [veth for plan in plans for veth in plan.veths]
        command("ip", "-batch", "-", lines=[self._veth_line(veth) for veth in veths])
        for plan in plans:
            for veth in plan.veths:
                if not self._offloads or plan.wired:
                    self._disable_offloads(veth)
        self._configure(plans)
        links = [self._finish(plan) for plan in plans]
        for link in links:
            if link.wire is not None:
                link.wire.wait()
            link.wait()
        return links

    def _veth_line(self, veth: Veth) -> str:
        ends = [self._end_words(node, name) for node, name in (veth.left, veth.right)]
        return f"link add {ends[0]} type veth peer {ends[1]}"

    def _end_words(self, node: Node, name: str) -> str:
        words = f"name {name} mtu {self.mtu_bytes} netns {node.namespace}"
        return f"{words} index {NUMBERS[name]}" if name in NUMBERS else words

    def _disable_offloads(self, veth: Veth) -> None:
        for node, interface in (veth.left, veth.right):
            with node.inside():
                devices.disable_offloads(interface)

    def _configure(self, plans: Sequence[Plan]) -> None:
        """Addresses, bridges' ports, and everything up; hosts first, so that a switch's port finds a carrier."""
        lines: dict[Node, list[str]] = {}
        for plan in plans:
            for end in (plan.a, plan.b):
                lines.setdefault(end.node, []).extend(_end_lines(end))
            if plan.middle is not None:
                lines[plan.middle] = _middle_lines(bridged=not (plan.wired or self._cards))
        for node in sorted(lines, key=lambda node: not isinstance(node, Host)):
            node.ip(*lines[node])

    def _finish(self, plan: Plan) -> Link:
        wire = None
        cables = [
            Cable(plan.b.node, plan.b.interface)
            if isinstance(plan.b.node, Switch)
            else Cable(plan.a.node, plan.a.interface)
        ]
        if plan.middle is not None:
            cables = [Cable(plan.middle, "a"), Cable(plan.middle, "b")]
            if plan.wired:
                log = self.folder / f"{plan.middle.name}.log"
                wire = Wire(plan.middle, self.mtu_bytes, log, self._check_checksums)
                self._resources.callback(wire.close)
            elif self._cards:
                attach_cards(plan.middle, (plan.a, plan.b))
        link = Link(plan.a, plan.b, self.mtu_bytes, cables, wire)
        self.links.append(link)
        plan.a.node.links.append(link)
        plan.b.node.links.append(link)
        return link


def _end_lines(end: End) -> list[str]:
    if end.address is None:
        return [
            f"link set dev {end.interface} addrgenmode none",
            f"link set dev {end.interface} master br0",
            f"link set dev {end.interface} up",
        ]
    return [
        f"addr add {end.address}/24 dev {end.interface}",
        f"addr add {end.address_6}/64 dev {end.interface} nodad",
        f"link set dev {end.interface} up",
    ]


def _middle_lines(*, bridged: bool) -> list[str]:
    lines = [f"link set dev {interface} addrgenmode none" for interface in "ab"]
    if bridged:
        lines += [*BRIDGE, "link set dev a master br0", "link set dev b master br0"]
    return [*lines, "link set dev a up", "link set dev b up"]
