"""The wire that harms: it sees real frames, and does with them exactly what its rules say."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from tests.network_fixtures import NetworkFactory

from harness.network import Host, Link, Match, NetworkError, Rule
from harness.network.namespaces import wait_until
from harness.network.stream import Stream, numbered, numbers

SOL_UDP, UDP_SEGMENT = 17, 103


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
            Rule("drop", matches=(Match(98, 0, width=3, mask=0),)),  # past the end
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
