"""The test networks themselves: what they carry, limit, cut and harm is what they were told to."""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.network import Host, Link, Match, Network, NetworkError, Process, Rule, namespaces
from tests.network.fixtures import NetworkFactory
from tests.network.namespaces import wait_until

SOL_UDP, UDP_SEGMENT = 17, 103
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
UDP_HEADERS_BYTES = 28  # with IPv4's


@contextmanager
def one_processor() -> Iterator[None]:
    """Frames sent from two processors may overtake each other; what is counted by number must not."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def numbered(count: int, size: int = 100) -> list[bytes]:
    """Payloads that begin with their number, from 1 on."""
    return [number.to_bytes(4, "big").ljust(size, b"\xa5") for number in range(1, count + 1)]


def numbers(payloads: list[bytes]) -> list[int]:
    return [int.from_bytes(payload[:4], "big") for payload in payloads]


class Stream:
    """Datagrams from one host to another over a wire, and what came of them."""

    def __init__(self, sender: Host, receiver: Host, version: int = 4) -> None:
        self.sender, self.receiver = sender, receiver
        self.sending, self.receiving = sender.udp(version=version), receiver.udp(version=version)
        self.sending.sendto(b"hello", self.receiving.getsockname())  # addresses are resolved before anything counts
        self.receiving.recv(100)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.sending.close()
        self.receiving.close()

    def send(self, payloads: list[bytes]) -> None:
        with one_processor():
            for payload in payloads:
                self.sending.sendto(payload, self.receiving.getsockname())

    def receive(self, count: int) -> list[bytes]:
        """That many datagrams, and no more."""
        received = [self.receiving.recv(65536) for _ in range(count)]
        assert self.is_quiet()
        return received

    def is_quiet(self) -> bool:
        """Whether nothing waits at the receiver, once a last datagram of another stream has passed."""
        with Stream(self.sender, self.receiver):
            return not select.select([self.receiving], [], [], 0)[0]


def has_ended(pid: int) -> bool:
    """Whether it runs no more, be it that nobody has asked yet how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.fixture
def pair(wired_network: NetworkFactory) -> tuple[Host, Host, Link]:
    """Two hosts, and the wired link between them."""
    net = wired_network()
    link = net.link("left", "right", wired=True)
    return net["left"], net["right"], link


def seen(link: Link, count: int) -> int:
    """Wait until the wire's first rule has seen that many frames to the right; on how many it acted."""
    wait_until(lambda: link.counts("right")["rules"][0]["seen"] >= count, f"{count} frames")
    (rule,) = link.counts("right")["rules"]
    assert rule["seen"] == count
    return int(rule["acted"])


# ---- topologies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
def test_hosts_of_a_star_reach_each_other(network: NetworkFactory, version: int) -> None:
    with network() as net:
        hosts = net.star("server", "w0", "w1")
        assert [host.address for host in hosts] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
        for host in hosts[1:]:
            with Stream(host, hosts[0], version):
                pass
            assert host.link.a.counters().sent_bytes > 0
            assert host.link.b.counters().received_frames > 0
            assert host.link.a.offloads() == set()


def test_racks_and_direct_links(network: NetworkFactory) -> None:
    with network(mtu_bytes=9000) as net:
        net.switch("spine")
        net.star("w0", "w1", switch="rack0")
        net.star("w2", "w3", switch="rack1")
        net.link("rack0", "spine")
        net.link("rack1", "spine")
        net.link("w0", "w3")
        with Stream(net["w0"], net["w2"]) as stream:
            stream.send(numbered(3, size=9000 - UDP_HEADERS_BYTES))
            assert numbers(stream.receive(3)) == [1, 2, 3]
        assert net["w3"].ends[1].address == "10.77.100.2"
        direct = net.link_between("w0", "w3").b.counters()
        with net["w0"].udp() as sending, net["w3"].udp() as receiving:
            sending.sendto(b"direct", ("10.77.100.2", 9))
            wait_until(lambda: net["w3"].ends[1].counters().received_frames > direct.received_frames, "a frame")
            assert net.link_between("rack0", "spine").a.is_running()
            receiving.close()


@pytest.mark.parametrize("mtu_bytes", [1500, 9000])
@pytest.mark.parametrize("wired", [False, True])
def test_mtu_is_kept(wired_network: NetworkFactory, mtu_bytes: int, wired: bool) -> None:
    largest = mtu_bytes - UDP_HEADERS_BYTES
    with wired_network(mtu_bytes=mtu_bytes) as net:
        server, worker = net.star("server", "w0", wired=wired)
        with server.udp() as receiving, worker.udp() as sending, server.capture() as capture:
            sending.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
            sending.sendto(bytes(largest), receiving.getsockname())
            assert len(receiving.recv(65536)) == largest
            with pytest.raises(OSError, match="too long") as raised:
                sending.sendto(bytes(largest + 1), receiving.getsockname())
            assert raised.value.errno == errno.EMSGSIZE
            assert [len(datagram.frame) for datagram in capture.wait(1)] == [mtu_bytes + 14]


@pytest.mark.parametrize("offloads", [False, True])
def test_the_wire_sees_real_frames(wired_network: NetworkFactory, offloads: bool) -> None:
    """Neither TCP's nor UDP's large sends reach the wire uncut, or without their checksums."""
    with wired_network(offloads=offloads, check_checksums=True) as net:
        server, worker, plain = net.star("server", "w0", "w1", wired=["w0"])
        assert worker.link.a.offloads() == set()
        assert bool(plain.link.a.offloads()) == offloads
        received = []
        with server.inside():
            listener = socket.create_server((server.address, 0))
        with listener, worker.inside():
            sending = socket.create_connection(listener.getsockname())
            connection, _ = listener.accept()
        reader = threading.Thread(target=lambda: received.append(len(connection.makefile("rb").read())))
        reader.start()
        with sending:
            sending.sendall(bytes(4 << 20))
        reader.join()
        connection.close()
        assert received == [4 << 20]
        with Stream(worker, server) as stream:
            stream.sending.setsockopt(SOL_UDP, UDP_SEGMENT, 1000)
            stream.send([bytes(20_000)])
            assert [len(payload) for payload in stream.receive(20)] == [1000] * 20
        for towards in ("switch", "w0"):
            counts = worker.link.counts(towards)
            assert counts["frames"] > 100
            assert {counts[name] for name in ("oversized", "without_checksum", "wrong_checksum", "missed")} == {0}


# ---- limits and cuts -------------------------------------------------------------------------------------------------


def test_limit_drops_what_is_too_much(network: NetworkFactory) -> None:
    with network() as net:
        server, worker = net.star("server", "w0")
        with Stream(worker, server) as stream:
            worker.link.limit(rate_bits=1e6, towards="switch")
            assert "tbf" not in worker.link.queue("switch")
            assert "rate 1Mbit" in worker.link.queue("w0")
            stream.send(numbered(300, size=1400))  # three seconds' worth

            def queue_counts() -> tuple[int, int]:
                found = re.search(r"Sent \d+ bytes (\d+) pkt \(dropped (\d+)", worker.link.queue("w0"))
                assert found is not None
                return int(found[1]), int(found[2])

            wait_until(lambda: sum(queue_counts()) >= 300, "an empty queue")
            passed, dropped = queue_counts()
            assert passed >= 8
            assert dropped > 0
            assert stream.receiving.recv(2000)[:4] == (1).to_bytes(4, "big")
            worker.link.unlimit()
            assert "tbf" not in worker.link.queue("w0")


@pytest.mark.parametrize("kind", ["star", "wired star", "direct"])
def test_cut_and_mend(wired_network: NetworkFactory, kind: str) -> None:
    with wired_network() as net:
        if kind == "direct":
            net.link("server", "w0")
        else:
            net.star("server", "w0", wired=kind == "wired star")
        server, worker = net["server"], net["w0"]

        def configuration() -> str:
            text = worker.run(["sh", "-c", "ip -o addr show dev eth0 scope global; ip route; ip -6 route"])
            return text.replace(" linkdown", "")

        before = configuration()
        with Stream(worker, server) as stream:
            sent = worker.link.a.counters().sent_frames
            worker.link.cut()
            assert not worker.ends[0].is_running()
            stream.send(numbered(5))  # without an error, as with a pulled cable
            assert configuration() == before
            assert worker.link.a.counters().sent_frames == sent
            worker.link.mend()
            wait_until(lambda: configuration() == before, "the same addresses and routes")
            stream.send(numbered(1, size=200))
            assert len(stream.receiving.recv(1000)) in (100, 200)  # what waited for an address may still come


# ---- harm ------------------------------------------------------------------------------------------------------------


def test_a_seed_loses_the_same_frames_again(pair: tuple[Host, Host, Link]) -> None:
    left, right, link = pair

    def survivors(seed: int) -> list[int]:
        link.harm(Rule("drop", 0.1, port=stream.receiving.getsockname()[1]), seed=seed, towards="right")
        stream.send(numbered(400))
        lost = seen(link, 400)
        assert 10 <= lost <= 80
        return numbers(stream.receive(400 - lost))

    with Stream(left, right) as stream:
        first = survivors(7)
        assert survivors(7) == first
        assert survivors(8) != first
        assert link.counts("right")["dropped"] == 800 - 2 * len(first) + link.counts("right")["rules"][0]["acted"]
        link.harm()
        stream.send(numbered(100))
        assert numbers(stream.receive(100)) == list(range(1, 101))


def test_rules_find_frames_by_number_and_content(pair: tuple[Host, Host, Link]) -> None:
    left, right, link = pair
    with Stream(left, right) as stream:
        link.harm(
            Rule("drop", first=3, last=4),
            Rule("drop", matches=(Match(0, 7, width=4), Match(4, 0xA0, mask=0xF0))),
            Rule("drop", matches=(Match(2, 0x0001, width=2, mask=0x0003),), first=2, last=2),  # 1, then 5
            Rule("drop", matches=(Match(98, 0xA5A5A5, width=3),)),  # past the end
        )
        stream.send(numbered(10))
        assert numbers(stream.receive(6)) == [1, 2, 6, 8, 9, 10]
        assert [rule["acted"] for rule in link.counts("right")["rules"]] == [2, 1, 1, 0]
    with pytest.raises(NetworkError, match="1 to 8 bytes"):
        link.harm(Rule("drop", matches=(Match(0, 0, width=9),)))


def test_duplicates_come_twice_and_are_counted(pair: tuple[Host, Host, Link]) -> None:
    left, right, link = pair
    with Stream(left, right) as stream:
        link.harm(Rule("duplicate", first=2, last=3))
        stream.send(numbered(4))
        assert numbers(stream.receive(6)) == [1, 2, 2, 3, 3, 4]
        assert link.counts("right")["duplicated"] == 2


def test_held_frames_let_others_go_first(pair: tuple[Host, Host, Link]) -> None:
    left, right, link = pair
    with Stream(left, right) as stream:
        link.harm(Rule("hold", first=2, last=2, hold_frames=3))
        stream.send(numbered(6))
        assert numbers(stream.receive(6)) == [1, 3, 4, 5, 2, 6]
        link.harm(Rule("hold", first=3, last=3, hold_frames=3, hold_seconds=0.02))
        stream.send(numbered(3))
        assert numbers(stream.receive(3)) == [1, 2, 3]  # nothing followed
        assert link.counts("right")["held"] == 2


def test_delay_holds_every_frame_in_order(pair: tuple[Host, Host, Link]) -> None:
    left, right, link = pair
    with Stream(left, right) as stream:
        link.harm(delay_seconds=0.05, towards="right")
        began = time.monotonic()
        stream.send(numbered(50))
        assert numbers([stream.receiving.recv(1000) for _ in range(50)]) == list(range(1, 51))
        assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("version", [4, 6])
def test_corruption_is_caught_unless_the_checksum_fits(pair: tuple[Host, Host, Link], version: int) -> None:
    left, right, link = pair
    sent = numbered(3, size=1000)
    with Stream(left, right, version) as stream:
        before = right.udp_counters()["InCsumErrors"]
        link.harm(Rule("corrupt", first=2, last=2), seed=3)
        stream.send(sent)
        assert stream.receive(2) == [sent[0], sent[2]]
        if version == 4:
            assert right.udp_counters()["InCsumErrors"] == before + 1

        link.harm(Rule("corrupt_and_fix", first=2, last=2), seed=3)
        stream.send(sent)
        received = stream.receive(3)
        assert [received[0], received[2]] == [sent[0], sent[2]]
        difference = int.from_bytes(received[1], "big") ^ int.from_bytes(sent[1], "big")
        assert difference.bit_count() == 1
        assert link.counts("right")["corrupted"] == 2


def test_all_else_passes_when_all_udp_is_lost(wired_network: NetworkFactory) -> None:
    with wired_network() as net:
        server, worker = net.star("server", "w0", wired=["w0"])
        worker.link.harm(loss=1.0)
        with server.inside():
            listener = socket.create_server((server.address, 0))
        with listener, worker.inside(), socket.create_connection(listener.getsockname(), timeout=5):
            pass  # address resolution and TCP work
        with worker.udp() as sending:
            sending.sendto(b"lost", (server.address, 9))
        wait_until(lambda: worker.link.counts("switch")["dropped"] == 1, "a dropped frame")


# ---- capture, processes, cleanliness ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
def test_capture_shows_the_bytes_on_the_wire(network: NetworkFactory, version: int) -> None:
    with network() as net:
        server, worker = net.star("server", "w0")
        with Stream(worker, server, version) as stream:
            port = stream.receiving.getsockname()[1]
            with server.capture(port=port) as capture, server.udp() as other:
                stream.send([b"to the server"])
                stream.receiving.sendto(b"and back", stream.sending.getsockname())
                other.sendto(b"not this", (worker.address, 9))
                came, went = capture.wait(2)
                assert (came.payload, came.outgoing) == (b"to the server", False)
                assert (went.payload, went.outgoing) == (b"and back", True)
                assert came.source == went.destination == stream.sending.getsockname()[:2]
                assert came.frame.endswith(came.payload)
                assert stream.receive(1) == [b"to the server"]
                with pytest.raises(NetworkError, match="captured only 2"):
                    capture.wait(3, timeout_seconds=0.01)


def test_processes_end_with_the_network(network: NetworkFactory) -> None:
    with network() as net:
        (host,) = net.star("server")
        assert "10.77.0.1" in host.run(["ip", "address"])
        assert host.popen(["ls", "/sys/class/net"], own_sys=True).wait() == 0
        assert host.processes[-1].output().split() == ["eth0", "lo"]
        with pytest.raises(NetworkError, match="what went wrong"):
            host.run(["sh", "-c", "echo what went wrong; exit 3"])
        stubborn = host.popen(["sh", "-c", "trap '' TERM; sleep 1000 & echo $!; exec sleep 0.1"])
        wait_until(lambda: stubborn.output() != "", "the child's id")
        child = int(stubborn.output())
        stubborn.wait()
    assert has_ended(child)
    assert "what went wrong" in net.report()
    assert list(namespaces.FOLDER.glob(f"luwu-{os.getpid()}-*")) == []


def test_a_killed_run_is_swept_up(network: NetworkFactory) -> None:
    program = (
        "import os, signal; from tests.network import Network; net = Network(); (host,) = net.star('h');"
        "process = host.popen(['sleep', '1000']); print(host.namespace, process.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    name, pid = killed.stdout.split()
    with network() as living:
        mine = living.host("mine")
        assert not (namespaces.FOLDER / name).exists()
        namespaces.sweep()
        assert (namespaces.FOLDER / mine.namespace).exists()
    assert has_ended(int(pid))


def test_without_root_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    namespaces.missing.cache_clear()
    try:
        assert namespaces.missing() == "test networks need root"
        with pytest.raises(NetworkError, match="need root"):
            Network()
    finally:
        namespaces.missing.cache_clear()


def test_a_process_reports_how_it_ended(tmp_path: Path) -> None:
    process = Process("name", ["sh", "-c", "echo output; exit 4"], tmp_path / "log")
    assert process.wait() == 4
    assert "exit code 4" in process.report()
    assert "output" in process.report()
