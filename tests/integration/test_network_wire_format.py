"""The packets of a real job, decoded by docs/protocol.md alone: what is documented is what is on the wire."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.network_fixtures import NetworkFactory

import luwu
from harness.network import Datagram
from harness.network.namespaces import wait_until
from harness.stored import read_block
from luwu.control import control_pb2 as pb
from luwu.store.opening import open_reader

KEY = {"LUWU_JOB_KEY": "the key of a job in the tests"}
MTU_BYTES = 1500
PAYLOAD_BYTES = 1408
STEPS = 3
IP_UDP_BYTES = 28
BLOCKS = len(small_manifest().blocks)

# docs/protocol.md from here on.
HEAD = struct.Struct("<HBBIQHHHBBQIIQ")
HEARTBEAT = struct.Struct("<3Q4Q4Q4Q4QIIII")
HOLE = struct.Struct("<QII")
PARAMETERS, REQUEST, EXPONENTS, AGREED, GRADIENTS, HEARTBEATS = range(1, 7)
STREAM_OF = {PARAMETERS: 0, REQUEST: 1, EXPONENTS: 2, AGREED: 2, GRADIENTS: 3}
BYTES, INT16, INT32 = 0, 1, 2
FROM_PARENT = 0xFFFF
GROUP_ELEMENTS = 32
MASK = (1 << 64) - 1


def draw_weights(key: int, count: int) -> list[int]:
    """SplitMix64 from the key; the weights are odd and have 31 bits."""
    state, weights = key, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        weights.append(((mixed ^ (mixed >> 31)) >> 33) | 1)
    return weights


class Checksum:
    """Checksums of one job's packets."""

    def __init__(self, key: int) -> None:
        self.weights = draw_weights(key, 16 + PAYLOAD_BYTES)

    def of(self, head: bytes, payload: bytes, form: int, count: int) -> int:
        words = struct.unpack("<4i", head[:16]) + struct.unpack("<i4i", head[20:40])
        total = max(1, count) * sum(weight * word for weight, word in zip(self.weights, words, strict=False))
        size, letter = (2, "h") if form == INT16 else (4, "i")
        padded = payload + bytes(-len(payload) % size)
        values = struct.unpack(f"<{len(padded) // size}{letter}", padded)
        return (total + sum(weight * value for weight, value in zip(self.weights[16:], values, strict=False))) & MASK


@dataclass
class Packet:
    """A datagram's head, and where it was going: ``up`` or ``down``, from or to the host of that name."""

    datagram: Datagram
    way: str
    host: str
    magic: int = field(init=False)
    version: int = field(init=False)
    kind: int = field(init=False)
    epoch: int = field(init=False)
    job: int = field(init=False)
    sender: int = field(init=False)
    count: int = field(init=False)
    length: int = field(init=False)
    form: int = field(init=False)
    flags: int = field(init=False)
    sequence: int = field(init=False)
    block: int = field(init=False)
    index: int = field(init=False)
    checksum: int = field(init=False)

    def __post_init__(self) -> None:
        (
            self.magic, self.version, self.kind, self.epoch, self.job, self.sender, self.count, self.length, self.form,
            self.flags, self.sequence, self.block, self.index, self.checksum,
        ) = HEAD.unpack_from(self.datagram.payload)  # fmt: skip

    @property
    def payload(self) -> bytes:
        return self.datagram.payload[HEAD.size :]


class Heartbeat:
    """A heartbeat's payload."""

    def __init__(self, payload: bytes) -> None:
        numbers = HEARTBEAT.unpack_from(payload)
        self.time, self.echo, self.held = numbers[:3]
        self.next, self.ack, self.credit, self.heard = (numbers[at : at + 4] for at in (3, 7, 11, 15))
        self.holes_used, self.below, self.marked, self.counts_marks = numbers[19:]
        self.holes = list(HOLE.iter_unpack(payload[HEARTBEAT.size :]))


@dataclass
class Recording:
    """The packets that passed the switch while a job trained."""

    packets: list[Packet]
    topology: pb.Topology
    store: Path

    def data(self, kind: int, way: str, *hosts: str) -> dict[int, Packet]:
        """Packets by sequence, as each came first; one that was sent again must be the same but for its count."""
        found: dict[int, Packet] = {}
        for packet in self.packets:
            if (packet.kind, packet.way) == (kind, way) and packet.host in hosts:
                first = found.setdefault(packet.sequence, packet)
                assert (first.payload, first.block, first.index) == (packet.payload, packet.block, packet.index)
        return found

    def heartbeats(self, way: str, host: str) -> list[tuple[int, Heartbeat]]:
        """Return the heartbeats with their numbers."""
        return [
            (packet.sequence, Heartbeat(packet.payload))
            for packet in self.packets
            if (packet.kind, packet.way, packet.host) == (HEARTBEATS, way, host)
        ]


def work(url: str, rank: int, told: Path) -> None:
    """A worker: some steps, and one that is rolled back, whose parameters are what is committed."""
    with luwu.connect(url, rank=rank, workers=2) as session:
        worker = NumpyWorker(session, small_manifest())
        topology = session._servers[0]._topology
        assert topology is not None
        told.write_bytes(topology.SerializeToString())
        assert all(worker.step() for _ in range(STEPS))
        assert not worker.step(spoil=True)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """Record a job of two workers through a switch."""
    from harness.network.namespaces import missing

    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("wire-format")
    factory = NetworkFactory(folder)
    with factory(mtu_bytes=MTU_BYTES) as net:
        server, adder, *workers = net.star("server", "adder", "w0", "w1")
        names = {host.address: host.name for host in (server, *workers)}
        command = [sys.executable, "-m", "luwu.cli"]
        store, url_file = folder / "store", folder / "url"
        with adder.capture() as capture:
            serving = server.popen(
                [
                    *(*command, "server", "--store", str(store), "--workers", "2", "--memory", "64MiB"),
                    *("--transport", "udp", "--switches", "1"),
                    *("--listen", f"{server.address}:0", "--url-file", str(url_file)),
                ],
                KEY,
            )
            wait_until(lambda: url_file.exists() or serving.returncode is not None, "the server", 60)
            url = url_file.read_text().strip()
            adder.popen([*command, "switch", "--server", url, "--listen", f"{adder.address}:0", "--name", "s"], KEY)
            script = [sys.executable, "-m", __name__, url]
            trained = [
                host.popen([*script, str(rank), str(folder / f"told{rank}")], KEY) for rank, host in enumerate(workers)
            ]
            assert [process.wait(90) for process in trained] == [0, 0], net.report()
            assert serving.stop() == 0
            datagrams = capture.wait(1)
            assert capture.missed() == 0
        assert capture.fragments == 0
    factory.close()
    topology = pb.Topology.FromString((folder / "told0").read_bytes())
    packets = []
    for datagram in datagrams:
        up = datagram.source[0] in names and names[datagram.source[0]] != "server"
        inner = datagram.destination[0] if datagram.outgoing else datagram.source[0]
        way = "up" if up or (datagram.outgoing and names[inner] == "server") else "down"
        packets.append(Packet(datagram, way, names[inner]))
    yield Recording(packets, topology, store)


def test_heads_are_of_this_job_and_no_packet_is_longer_than_the_path(recording: Recording) -> None:
    network = recording.topology.network
    assert network.payload_bytes == PAYLOAD_BYTES
    for packet in recording.packets:
        assert (packet.magic, packet.version, packet.job) == (0x774C, 2, recording.topology.job)
        assert packet.epoch == network.epoch
        assert packet.length == len(packet.payload)
        assert packet.length <= PAYLOAD_BYTES
        assert len(packet.datagram.payload) + IP_UDP_BYTES <= MTU_BYTES
        assert packet.flags == 0
        if packet.way == "down":
            assert (packet.sender, packet.count) == (FROM_PARENT, 0)
        else:
            assert packet.sender == {"server": 0, "w0": 0, "w1": 1}[packet.host]
            workers = 2 if packet.host == "server" else 1
            assert packet.count == (0 if packet.kind == HEARTBEATS else workers)
        assert packet.form == (INT32 if packet.kind == GRADIENTS else BYTES)
    assert {packet.kind for packet in recording.packets} == set(range(1, 7))


def test_checksums_are_as_documented(recording: Recording) -> None:
    checksum = Checksum(recording.topology.network.key)
    for packet in recording.packets:
        head = packet.datagram.payload[: HEAD.size]
        assert checksum.of(head, packet.payload, packet.form, packet.count) == packet.checksum


def test_streams_are_numbered_without_gaps_and_messages_are_whole(recording: Recording) -> None:
    elements = [block.elements for block in small_manifest().blocks]
    passes = STEPS + 1
    order = list(reversed(range(BLOCKS))) * passes
    sizes = {
        PARAMETERS: [4 * elements[block] for block in order],
        REQUEST: [0 for _ in order],
        EXPONENTS: [-(-elements[block] // GROUP_ELEMENTS) for block in order],
        AGREED: [-(-elements[block] // GROUP_ELEMENTS) for block in order],
        GRADIENTS: [4 * elements[block] for block in order],
    }
    for kind, messages in sizes.items():
        expected = [
            (block, index, min(PAYLOAD_BYTES, size - index * PAYLOAD_BYTES))
            for block, size in zip(order, messages, strict=True)
            for index in range(max(1, -(-size // PAYLOAD_BYTES)))
        ]
        way = "down" if kind in (PARAMETERS, AGREED) else "up"
        for host in ("server", "w0", "w1"):
            found = recording.data(kind, way, host)
            assert sorted(found) == list(range(len(expected)))
            assert [(found[at].block, found[at].index, found[at].length) for at in sorted(found)] == expected


def test_what_the_switch_sends_up_is_the_sum_of_what_the_workers_sent(recording: Recording) -> None:
    parts = [recording.data(GRADIENTS, "up", host) for host in ("w0", "w1")]
    sums = recording.data(GRADIENTS, "up", "server")
    for sequence, packet in sums.items():
        left, right = (part[sequence] for part in parts)
        values = [np.frombuffer(part.payload, "<i4").astype(np.int64) for part in (left, right)]
        assert np.array_equal(values[0] + values[1], np.frombuffer(packet.payload, "<i4"))
        assert packet.checksum == (left.checksum + right.checksum) & MASK
    parts = [recording.data(EXPONENTS, "up", host) for host in ("w0", "w1")]
    agreed = recording.data(AGREED, "down", "server")
    for sequence, packet in recording.data(EXPONENTS, "up", "server").items():
        largest = np.maximum(*(np.frombuffer(part[sequence].payload, np.uint8) for part in parts))
        assert bytes(largest) == packet.payload == agreed[sequence].payload
    assert any(255 in packet.payload for packet in agreed.values())  # the step with a gradient that is not finite


def test_parameters_are_copied_and_are_what_the_store_holds(recording: Recording) -> None:
    sent = recording.data(PARAMETERS, "down", "server")
    for host in ("w0", "w1"):
        copies = recording.data(PARAMETERS, "down", host)
        assert all(copies[at].datagram.payload == packet.datagram.payload for at, packet in sent.items())
    reader, manifest = open_reader([recording.store])
    assert reader.step == STEPS
    last: dict[int, list[Packet]] = {}
    for sequence in sorted(sent):
        packet = sent[sequence]
        if packet.index == 0:
            last[packet.block] = []
        last[packet.block].append(packet)
    for number in range(len(manifest.blocks)):
        parameters, _ = read_block(reader, number)
        assert b"".join(packet.payload for packet in last[number]) == np.asarray(parameters).tobytes()


def links() -> Sequence[str]:
    return ("server", "w0", "w1")


@pytest.mark.parametrize("host", links())
def test_heartbeats_tell_one_story(recording: Recording, host: str) -> None:
    """Both ends of each of the switch's links agree."""
    for way, other_way in (("up", "down"), ("down", "up")):
        numbers = [number for number, _ in recording.heartbeats(way, host)]
        assert len(numbers) > 10 and numbers == sorted(set(numbers))
        told = {0} | {heartbeat.time for _, heartbeat in recording.heartbeats(other_way, host)}
        previous: Heartbeat | None = None
        for _, heartbeat in recording.heartbeats(way, host):
            from_switch = (host, way) == ("server", "up")
            assert heartbeat.below < 1e6 if from_switch else heartbeat.below == 0
            assert heartbeat.marked == 0 and heartbeat.counts_marks in (0, 1)
            assert len(heartbeat.holes) == heartbeat.holes_used <= 32
            assert all(stream < 4 and length > 0 for _, length, stream in heartbeat.holes)
            assert heartbeat.echo in told
            assert heartbeat.held < 60e9
            for stream in range(4):
                assert heartbeat.ack[stream] <= max(heartbeat.heard[stream], heartbeat.next[stream])
            if previous is not None:
                assert heartbeat.time > previous.time and heartbeat.echo >= previous.echo
                for name in ("next", "ack", "credit", "heard"):
                    was, now = getattr(previous, name), getattr(heartbeat, name)
                    assert all(left <= right for left, right in zip(was, now, strict=True)), name
            previous = heartbeat
        assert previous is not None and previous.counts_marks == 1


@pytest.mark.parametrize("host", links())
def test_nobody_sends_what_was_not_granted(recording: Recording, host: str) -> None:
    """The switch's own packets and what it has heard, in the order in which they passed it."""
    windows = recording.topology.network.windows
    granted = {"up": [0] * 4, "down": [0] * 4}  # to who sends this way, by the other end
    acknowledged = {"up": [0] * 4, "down": [0] * 4}
    checked = 0
    for packet in recording.packets:
        if packet.host != host:
            continue
        if packet.kind == HEARTBEATS:
            heartbeat = Heartbeat(packet.payload)
            other = "down" if packet.way == "up" else "up"
            granted[other] = [max(pair) for pair in zip(granted[other], heartbeat.credit, strict=True)]
            acknowledged[other] = [max(pair) for pair in zip(acknowledged[other], heartbeat.ack, strict=True)]
        elif packet.kind != AGREED:  # answers have the credit of the questions
            stream = STREAM_OF[packet.kind]
            if packet.kind == PARAMETERS or host != "server":  # a switch hands on what its children were granted
                assert packet.sequence < granted[packet.way][stream]
            assert packet.sequence < acknowledged[packet.way][stream] + windows[stream]
            checked += 1
    assert checked > 100


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
