"""The tree of a run over UDP: who hangs on which switch, and what everybody is told of it."""

from __future__ import annotations

import pytest

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.errors import ConfigError
from luwu.server import tree
from luwu.server.topology import PacketOrigin, SwitchMember, TopologyReady
from luwu.server.tree import Branch, UdpPlan, grow


def switch(name: str, fan_in: int = 64, parent: str = "", payload_bytes: int = 1408) -> SwitchMember:
    number = sum(name.encode()) % 200
    return SwitchMember(
        name=f"switch {name}", peer="", address=f"10.0.1.{number}", port=7000 + number, fan_in=fan_in,
        payload_bytes=payload_bytes, parent=parent,
    )  # fmt: skip


def places(count: int, **asked: str) -> list[PacketOrigin]:
    """Return the places of workers; w2="a" lets worker 2 ask for switch a."""
    return [PacketOrigin(f"10.0.0.{rank}", 5000 + rank, 1408, asked.get(f"w{rank}", "")) for rank in range(count)]


def shape(branch: Branch) -> dict:
    """Name to workers and branches below, without the word switch."""
    below = {name: inner for lower in branch.switches for name, inner in shape(lower).items()}
    return {branch.member.name.removeprefix("switch "): (branch.workers, below) if below else branch.workers}


@pytest.mark.parametrize(
    ("switches", "workers", "expected"),
    [
        ([switch("a")], 1, {"a": [0]}),
        ([switch("a")], 3, {"a": [0, 1, 2]}),
        ([switch("a"), switch("b"), switch("c")], 5, {"a": ([], {"b": [0, 1, 2], "c": [3, 4]})}),
        ([switch("a"), *map(switch, "bcde")], 2, {"a": ([], {"b": [0], "c": [1]})}),
        ([switch("a"), switch("b"), switch("c", parent="b"), switch("d")], 1, {"a": ([], {"d": [0]})}),
        ([switch("a", 2), *map(switch, "bcd")], 4, {"a": ([], {"b": ([], {"d": [2, 3]}), "c": [0, 1]})}),
        ([switch("a"), switch("b", 1), switch("c", 9)], 6, {"a": ([], {"b": [0], "c": [1, 2, 3, 4, 5]})}),
        ([switch("a"), switch("b", 9), switch("c", 1)], 6, {"a": ([], {"b": [0, 1, 2, 3, 4], "c": [5]})}),
    ],
)
def test_whoever_asks_for_nothing_is_spread_evenly(switches, workers, expected):
    assert shape(grow(switches, places(workers))) == expected


def test_a_deep_tree_is_as_its_switches_ask_for():
    chain = [
        switch("e", parent="d"),
        switch("a"),
        switch("d", parent="c"),
        switch("b", parent="a"),
        switch("c", 1, "b"),
    ]
    assert shape(grow(chain, places(2))) == {"a": ([], {"b": ([], {"c": ([], {"d": ([], {"e": [0, 1]})})})})}
    many = [switch(f"s{number}", fan_in=2) for number in range(127)]
    root = grow(many, places(128))

    def depths(branch: Branch, depth: int = 1) -> list[int]:
        assert branch.room == 0
        return [depth] * len(branch.workers) + [d for lower in branch.switches for d in depths(lower, depth + 1)]

    assert depths(root) == [7] * 128


def test_workers_hang_where_they_ask_to_and_the_others_fill_up():
    racks = [switch("a"), switch("b", 3, "a"), switch("c", 3, "a")]
    assert shape(grow(racks, places(4, w0="c", w1="c", w2="a"))) == {"a": ([2], {"b": [3], "c": [0, 1]})}
    assert shape(grow(racks, places(4, w0="c", w3="c"))) == {"a": ([], {"b": [1, 2], "c": [0, 3]})}


@pytest.mark.parametrize(
    ("switches", "workers", "words"),
    [
        ([switch("a", parent="b"), switch("b", parent="a")], places(1), "one without a parent, .* found a circle"),
        (
            [switch("r"), switch("a", parent="b"), switch("b", parent="a")],
            places(1),
            "switch a .* go round in a circle",
        ),
        ([switch("r"), switch("a", parent="a")], places(1), "switch a does not hang on switch r"),
        (
            [switch("a"), switch("b", parent="x")],
            places(1),
            "switch b: it asks for switch 'x'.* found switch a, switch b",
        ),
        ([switch("a")], places(2, w1="x"), "worker 1: it asks for switch 'x', which has not joined"),
        ([switch("a", 2)], places(5), "no room for 3 of 5 workers"),
        ([switch("a", 1), switch("b", 1), switch("c", 1)], places(2), "no room for 1 of 2 workers"),
        ([switch("a", 1), switch("b", parent="a"), switch("c", parent="a")], places(1), "switch a: no room"),
        ([switch("a", 1)], places(2, w0="a", w1="a"), "switch a: no room for 1 of 2 workers"),
        ([switch("a", 1), switch("b", 1, "a"), switch("c")], places(1), "no room above switch c; raise --fan-in"),
    ],
)
def test_what_cannot_be_a_tree_is_refused_by_name(switches, workers, words):
    with pytest.raises(ConfigError, match=words):
        grow(switches, workers)


class Core:
    """The core that a plan starts."""

    port, udp_port = 600, 601

    def start(self, wiring, child, group):
        self.started = (wiring, child, group)


class OwnSwitch:
    """The server's own."""

    port = 602

    def __init__(self, address, port):
        self.bound = (address, port)

    def start(self, wiring, parent, position, children):
        self.started = (parent, position, children)
        self.wiring = wiring


@pytest.fixture
def own(monkeypatch):
    """The switches that plans made for themselves."""
    made = []

    def make(address, port):
        made.append(OwnSwitch(address, port))
        return made[-1]

    monkeypatch.setattr(tree.native, "UdpSwitch", make)
    return made


def make_ready(switches, workers, job=77):
    return TopologyReady(job, len(workers), tuple(switches), "10.9.9.9", 600, tuple(workers), Core())


def plan(switches, workers, multicast="", form="int32"):
    ready = make_ready(switches, workers)
    return UdpPlan("127.0.0.1", form, multicast, Timeouts())(ready), ready.core


def parent_of(topology: pb.Topology) -> tuple[str, int, int]:
    return topology.network.parent_address, topology.network.parent_port, topology.position


def test_one_worker_needs_no_switch(own):
    told, core = plan([], places(1))
    assert set(told) == {"worker 0", "switch of the server"}
    assert parent_of(told["worker 0"]) == ("", Core.udp_port, 0)  # where it reached the server
    assert core.started[1:] == (("10.0.0.0", 5000), None)
    assert own == []


def test_without_switches_the_server_has_one_of_its_own(own):
    told, core = plan([], places(3))
    for rank in range(3):
        assert parent_of(told[f"worker {rank}"]) == ("", OwnSwitch.port, rank)
    assert core.started[1:] == (("127.0.0.1", OwnSwitch.port), None)
    (switch,) = own
    assert switch.bound == ("127.0.0.1", 0)
    assert switch.started == (("127.0.0.1", Core.udp_port), 0, [(f"10.0.0.{rank}", 5000 + rank) for rank in range(3)])


def test_everybody_is_told_its_parent_its_number_and_what_hangs_below(own):
    switches = [switch("a", payload_bytes=8832), switch("b", parent="a"), switch("c", parent="a", payload_bytes=1280)]
    told, core = plan(switches, places(3, w1="a"), form="int16")
    root, left, right = (told[member.name] for member in switches)
    assert (root.position, left.position, right.position) == (0, 0, 1)
    assert parent_of(root) == ("", Core.udp_port, 0)
    for lower in (left, right):
        assert parent_of(lower)[:2] == (switches[0].address, switches[0].port)
    assert [below.name for below in root.below] == ["switch b", "switch c", "worker 1"]
    assert parent_of(told["worker 1"]) == (switches[0].address, switches[0].port, 2)
    assert [below.name for below in left.below] == ["worker 0"]
    assert [below.name for below in right.below] == ["worker 2"]
    assert parent_of(told["worker 2"]) == (switches[2].address, switches[2].port, 0)
    assert (left.below[0].address, left.below[0].port) == ("10.0.0.0", 5000)
    assert core.started[1] == (switches[0].address, switches[0].port)
    assert own == []
    networks = [topology.network for topology in told.values()]
    assert {network.payload_bytes for network in networks} == {1280}  # the least of all
    assert {(network.key, network.epoch, network.form) for network in networks} == {(networks[0].key, 1, "int16")}
    assert {(topology.job, topology.workers, topology.port) for topology in told.values()} == {(77, 3, 600)}


def test_every_number_of_children_is_there_once():
    switches = [switch(f"s{number}", fan_in=3) for number in range(20)]
    told, _ = plan(switches, places(30))
    for topology in told.values():
        below = [told[neighbour.name] for neighbour in topology.below]
        assert [lower.position for lower in below] == list(range(len(below)))
    assert sum(len(topology.below) for topology in told.values()) == 19 + 30


def test_a_group_reaches_everybody():
    told, core = plan([switch("a")], places(2), multicast="239.1.2.3:4000")
    assert core.started[2] == ("239.1.2.3", 4000)
    for topology in told.values():
        assert (topology.network.group_address, topology.network.group_port) == ("239.1.2.3", 4000)


@pytest.mark.parametrize("payload", [0, 1, 2**32 - 1])
def test_packets_that_nobody_can_send_are_refused(own, payload):
    with pytest.raises(ConfigError, match=f"packets of {payload} bytes; expected a multiple of 128 up to 8832"):
        plan([], [PacketOrigin("10.0.0.1", 1, payload, ""), PacketOrigin("10.0.0.2", 1, max(payload, 8832), "")])


def test_windows_hold_as_many_bytes_whatever_the_packets():
    for payload in (1408, 8832):
        workers = [PacketOrigin("10.0.0.1", 1, payload, "")]
        told, _ = plan([switch("a", payload_bytes=payload)], workers)
        windows = told["worker 0"].network.windows
        assert windows[0] == windows[3] == tree.WINDOW_BYTES // payload


def moved(workers, rank, payload_bytes=1408):
    """Return the places where one of the workers is elsewhere."""
    changed = list(workers)
    changed[rank] = PacketOrigin("10.0.7.7", 7777, payload_bytes)
    return changed


def test_only_the_neighbours_of_a_worker_that_is_elsewhere_hear_of_it(own):
    plans, switches, workers = UdpPlan("127.0.0.1", "int32", "", Timeouts()), [*map(switch, "abc")], places(4)
    before = plans(make_ready(switches, workers))
    ready = make_ready(switches, moved(workers, 2))
    after = plans(ready)
    assert {name for name in after if after[name] != before[name]} == {"switch c"}
    assert ("10.0.7.7", 7777) in [(below.address, below.port) for below in after["switch c"].below]
    assert not hasattr(ready.core, "started")


def test_the_servers_own_switch_begins_anew_for_a_worker_that_is_elsewhere(own, monkeypatch):
    monkeypatch.setattr(tree, "make_wiring", lambda network, job, workers, incarnation=0: incarnation)
    plans, workers = UdpPlan("127.0.0.1", "int32", "", Timeouts()), places(3)
    before = plans(make_ready([], workers))
    for number in (1, 2):
        after = plans(make_ready([], moved(workers, 1)))
        assert [after[f"worker {rank}"] == before[f"worker {rank}"] for rank in range(3)] == [True] * 3
        (switch_of_server,) = own
        assert switch_of_server.started[2][1] == ("10.0.7.7", 7777)
        assert switch_of_server.wiring == number  # so that heartbeats of the one before are replays
    plans(make_ready([], workers, job=78))
    assert own[0].wiring == 0


def test_a_worker_that_cannot_send_the_runs_packets_is_refused(own):
    plans, workers = UdpPlan("127.0.0.1", "int32", "", Timeouts()), places(2)
    plans(make_ready([], workers))
    with pytest.raises(ConfigError, match=r"worker 1: .* packets of 512 bytes, and the run began with 1408"):
        plans(make_ready([], moved(workers, 1, payload_bytes=512)))
