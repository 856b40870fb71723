"""The tree of a run over UDP: the switch of each worker, and the facts that all must know beforehand."""

from __future__ import annotations

import heapq
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from luwu.control import control_pb2 as pb
from luwu.control.address import local_address, numeric, parse_host_port
from luwu.control.timeouts import Timeouts
from luwu.control.wiring import make_wiring, timings_of
from luwu.core import native
from luwu.core.errors import ConfigError
from luwu.server.cores import UdpCore
from luwu.server.topology import PacketOrigin, SwitchMember, TopologyReady, worker_name

WINDOW_BYTES = 6 << 20
"""Bytes of parameters, and of gradients, under way: within kernels' receive buffers, and enough for 40 Gb/s."""

REQUEST_WINDOW = 64
EXPONENT_WINDOW = 256
"""Packets of exponents under way; each stands for 45,000 elements and more."""

FIRST_EPOCH = 1


@dataclass
class Branch:
    """A switch and the participants below it."""

    member: SwitchMember
    switches: list[Branch]
    workers: list[int]

    @property
    def room(self) -> int:
        """Number of further children that it can have."""
        return self.member.fan_in - len(self.switches) - len(self.workers)


def grow(switches: Sequence[SwitchMember], places: Sequence[PacketOrigin]) -> Branch:
    """Arrange switches and workers: at the places they asked for, the rest level by level, workers last.

    At the bottom each switch has as many workers as the others, as far as there is room; one without any is left out.

    Args:
        switches: in the order in which they joined; the first that names no parent is the root.
        places: places of the workers, by rank.

    Raises:
        ConfigError: a name is unknown, the parents go round in a circle, or there is no room for everybody.
    """
    branches = {member.name: Branch(member, [], []) for member in switches}
    free = [branch for branch in branches.values() if not branch.member.parent]
    if not free:
        raise ConfigError("switches: expected one without a parent, as the root; found a circle")
    root = free.pop(0)
    for branch in branches.values():
        if branch.member.parent:
            _find(branches, branch.member.parent, branch.member.name).switches.append(branch)
    above = deque([root])
    for branch in free:
        while above and above[0].room <= 0:
            above.popleft()
        if not above:
            raise ConfigError(f"switches: no room above {branch.member.name}; raise --fan-in")
        above[0].switches.append(branch)
        above.append(branch)
    reached = _below(root)
    if len(reached) < len(branches):
        lost = next(name for name, branch in branches.items() if branch not in reached)
        raise ConfigError(f"switches: {lost} does not hang on {root.member.name}; its parents go round in a circle")
    _place_workers(branches, reached, places)
    for branch in reversed(reached):
        branch.switches = [lower for lower in branch.switches if lower.switches or lower.workers]
    return root


def _find(branches: Mapping[str, Branch], name: str, asker: str) -> Branch:
    found = branches.get(f"switch {name}")
    if found is None:
        raise ConfigError(f"{asker}: it asks for switch {name!r}, which has not joined; found {', '.join(branches)}")
    return found


def _below(root: Branch) -> list[Branch]:
    reached = [root]
    for branch in reached:
        reached += branch.switches
    return reached


def _place_workers(branches: Mapping[str, Branch], reached: Sequence[Branch], places: Sequence[PacketOrigin]) -> None:
    for rank, place in enumerate(places):
        if place.switch:
            _find(branches, place.switch, worker_name(rank)).workers.append(rank)
    leaves = [branch for branch in reached if not branch.switches]
    rest = [rank for rank, place in enumerate(places) if not place.switch]
    for branch, share in zip(leaves, _share_out(leaves, len(rest)), strict=True):
        branch.workers = sorted(branch.workers + rest[:share])
        rest = rest[share:]
    crowded = next((branch for branch in reached if branch.room < 0), None)
    if rest or crowded is not None:
        where = crowded.member.name if crowded else "the switches"
        raise ConfigError(f"{where}: no room for {len(rest) or 1} of {len(places)} workers; raise --fan-in or add one")


def _share_out(leaves: Sequence[Branch], workers: int) -> list[int]:
    """Return the number of workers that each leaf takes: always the leaf with the fewest, while it has room."""
    shares = [0] * len(leaves)
    takers = [(len(leaf.workers), number) for number, leaf in enumerate(leaves) if leaf.room > 0]
    heapq.heapify(takers)
    for _ in range(workers):
        if not takers:
            break
        has, number = heapq.heappop(takers)
        shares[number] += 1
        if shares[number] < leaves[number].room:
            heapq.heappush(takers, (has + 1, number))
    return shares


class UdpPlan:
    """Plans the tree of a run, and starts the server's end of it. Without switches the server has one of its own.

    Args:
        listen: host that the server listens at.
        form: form of gradients on the wire: ``int32``, ``int16`` or ``float32``.
        multicast: ``GROUP:PORT`` that parameters are sent to; empty: switches copy them.
        timeouts: timeouts of the network.
    """

    def __init__(self, listen: str, form: str, multicast: str, timeouts: Timeouts) -> None:
        self._local = local_address(listen)
        self._form = form
        self._group = parse_host_port(multicast, lowest_port=1) if multicast else None
        self._timeouts = timeouts
        self._own: native.UdpSwitch | None = None
        self._job: int | None = None  # of the run that was planned last
        self._network = pb.Network()  # of that run
        self._begun_anew = 0  # times that the server's own switch did in that run

    def __call__(self, ready: TopologyReady[UdpCore]) -> Mapping[str, pb.Topology]:
        """Return the place of each participant, by name.

        In a run that has begun, a worker may be elsewhere than before.

        Raises:
            ConfigError: there is no room in the tree, or a worker came in a run that cannot take its packets.
        """
        begins = ready.job != self._job
        network = self._begin_run(ready) if begins else self._go_on(ready)
        root = grow(ready.switches, ready.places) if ready.switches else self._grow_alone(ready, network)
        topologies: dict[str, pb.Topology] = {}
        self._describe(root, network, ready, topologies)
        if begins:
            top = (root.member.address, root.member.port)
            if not ready.switches and ready.workers == 1:  # nothing to add up
                top = (ready.places[0].address, ready.places[0].port)
            group = (self._group.host, self._group.port) if self._group else None
            ready.core.start(make_wiring(network, ready.job, ready.workers), top, group)
            self._job = ready.job
        return topologies

    def failure(self) -> str | None:
        """The reason that the server's own switch has ended; None: it runs, or there is none."""
        return self._own.failure() if self._own is not None else None

    def _go_on(self, ready: TopologyReady[UdpCore]) -> pb.Network:
        """Return the network of the run that has begun."""
        for rank, place in enumerate(ready.places):
            if place.payload_bytes < self._network.payload_bytes:
                raise ConfigError(
                    f"{worker_name(rank)}: its way to the server carries packets of {place.payload_bytes} bytes, and "
                    f"the run began with {self._network.payload_bytes}; start it where the lost worker was"
                )
        self._begun_anew += 1
        return self._network

    def _begin_run(self, ready: TopologyReady[UdpCore]) -> pb.Network:
        self._begun_anew = 0
        payload = min(
            [place.payload_bytes for place in ready.places] + [switch.payload_bytes for switch in ready.switches]
        )
        packets = max(256, WINDOW_BYTES // max(1, payload))  # what nobody can send is refused with the wiring
        network = pb.Network(
            key=secrets.randbits(64),
            epoch=FIRST_EPOCH,
            payload_bytes=payload,
            form=self._form,
            windows=(packets, REQUEST_WINDOW, EXPONENT_WINDOW, packets),
            parent_port=ready.core.udp_port,
        )
        for name, seconds in timings_of(self._timeouts).items():
            setattr(network, name, seconds)
        if self._group is not None:
            network.group_address, network.group_port = self._group.host, self._group.port
        self._network = network
        return network

    def _grow_alone(self, ready: TopologyReady[UdpCore], network: pb.Network) -> Branch:
        port = ready.core.udp_port
        if ready.workers > 1:
            self._own = self._own or native.UdpSwitch(self._local, 0)
            children = [(place.address, place.port) for place in ready.places]
            wiring = make_wiring(network, ready.job, ready.workers, self._begun_anew)
            self._own.start(wiring, (numeric(self._local), port), 0, children)
            port = self._own.port
        member = SwitchMember(
            name="switch of the server", peer="", address=numeric(self._local), port=port, fan_in=ready.workers,
            payload_bytes=network.payload_bytes, parent="",
        )  # fmt: skip
        return Branch(member, [], list(range(ready.workers)))

    def _describe(
        self, root: Branch, network: pb.Network, ready: TopologyReady[UdpCore], topologies: dict[str, pb.Topology]
    ) -> None:
        """Fill in the places below a branch; ``network`` is that of the branch's own parent."""
        below: list[pb.Neighbour] = []
        inner = pb.Network()
        inner.CopyFrom(network)
        inner.parent_address = root.member.address if ready.switches else ""
        inner.parent_port = root.member.port
        for branch in root.switches:
            below.append(pb.Neighbour(name=branch.member.name, address=branch.member.address, port=branch.member.port))
        for rank in root.workers:
            place = ready.places[rank]
            topologies[worker_name(rank)] = self._topology(ready, len(below), inner, [])
            below.append(pb.Neighbour(name=worker_name(rank), address=place.address, port=place.port))
        for position, branch in enumerate(root.switches):
            self._describe(branch, inner, ready, topologies)
            topologies[branch.member.name].position = position
        topologies[root.member.name] = self._topology(ready, 0, network, below)

    @staticmethod
    def _topology(
        ready: TopologyReady[UdpCore], position: int, network: pb.Network, below: Sequence[pb.Neighbour]
    ) -> pb.Topology:
        return pb.Topology(
            job=ready.job, workers=ready.workers, address=ready.address, port=ready.port, position=position,
            network=network, below=below,
        )  # fmt: skip
