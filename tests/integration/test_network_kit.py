"""The test networks themselves: what they carry, limit, cut and clear away."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.network_fixtures import NetworkFactory

from harness.network import Network, NetworkError, NetworkUnavailableError, Process, namespaces
from harness.network.namespaces import has_ended, wait_until
from harness.network.programs import built
from harness.network.stream import Stream, numbered, numbers

IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
UDP_HEADERS_BYTES = 28  # with IPv4's


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


def test_links_with_cards_need_no_bridge(network: NetworkFactory) -> None:
    try:
        built("card.bpf.o")
    except NetworkUnavailableError as error:
        pytest.skip(str(error))
    with network(cards=True) as net:
        server, worker = net.star("server", "w0")
        net.link("w1", "w2")
        for there, back in ((server, worker), (worker, server), (net["w1"], net["w2"])):
            with Stream(there, back) as stream:
                stream.send(numbered(3, size=1500 - UDP_HEADERS_BYTES))
                assert numbers(stream.receive(3)) == [1, 2, 3]


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
            worker.link.cut()
            assert not worker.ends[0].is_running()
            sent = worker.link.a.counters().sent_frames  # after the cut: the kernel sends frames of its own before
            stream.send(numbered(5))  # without an error, as with a pulled cable
            assert configuration() == before
            assert worker.link.a.counters().sent_frames == sent
            worker.link.mend()
            wait_until(lambda: configuration() == before, "the same addresses and routes")
            stream.send(numbered(1, size=200))
            assert len(stream.receiving.recv(1000)) in (100, 200)  # what waited for an address may still come


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
            host.run(["sh", "-c", "printf 'what %s wrong' went >&2; exit 3"])
        stubborn = host.popen(["sh", "-c", "trap '' TERM; sleep 1000 & echo $!; exec sleep 0.1"])
        wait_until(lambda: stubborn.output() != "", "the child's id")
        child = int(stubborn.output())
        stubborn.wait()
    assert has_ended(child)
    assert "what went wrong" in net.report()
    assert list(namespaces.FOLDER.glob(f"luwu-{os.getpid()}-*")) == []


def test_a_killed_run_is_swept_up(network: NetworkFactory) -> None:
    program = (
        "import os, signal; from harness.network import Network; net = Network(); (host,) = net.star('h');"
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
