"""Measuring a link: over loopback, and with strangers at both ends."""

import socket
import threading

import pytest

from luwu.control.address import HostPort
from luwu.errors import ServerError
from luwu.probe import link
from luwu.probe.link import HELLO, MAGIC, TO, LinkAnswerer, measure_link

LOOPBACK = HostPort("127.0.0.1", 0)
SECONDS = 0.05


@pytest.fixture
def answerer():
    with LinkAnswerer(LOOPBACK) as answerer:
        yield answerer


def connect(answerer):
    return socket.create_connection((answerer.address.host, answerer.address.port), 10)


def test_all_that_is_carried_is_counted(answerer):
    found = measure_link(answerer.address, SECONDS)
    at_least = 4 * link.PIECE_BYTES / (SECONDS + 10)  # each stream carries a piece
    assert min(found.to_rate, found.back_rate, found.both_rate) > at_least
    assert 0 < found.answer_seconds < 60


def test_the_receiver_counts(answerer):
    with connect(answerer) as connection:
        connection.sendall(HELLO.pack(MAGIC, TO, 1.0) + bytes(12345))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(8) == (12345).to_bytes(8, "big")


@pytest.mark.parametrize(
    "hello",
    [
        HELLO.pack(b"x" * len(MAGIC), TO, 1.0),
        HELLO.pack(MAGIC, b"x", 1.0),
        HELLO.pack(MAGIC, TO, 11.0),
        HELLO.pack(MAGIC, TO, float("nan")),
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
    ],
)
def test_strangers_get_nothing_and_harm_nothing(answerer, hello):
    with connect(answerer) as connection:
        connection.sendall(hello)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert measure_link(answerer.address, SECONDS).to_rate > 0


def test_who_sends_for_too_long_is_cut_off(answerer, monkeypatch):
    monkeypatch.setattr(link, "PATIENCE_SECONDS", -1.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"more")
        with pytest.raises(TimeoutError, match="does not stop"):
            link.receive_all(theirs, 0.5)


def test_connections_beyond_the_limit_are_closed(answerer, monkeypatch):
    held = [connect(answerer) for _ in range(link.MOST_CONNECTIONS)]
    with connect(answerer) as one_more:
        assert one_more.recv(1) == b""
    for connection in held:
        connection.close()


def test_nobody_there_is_named():
    with LinkAnswerer(LOOPBACK) as gone:
        address = gone.address
    with pytest.raises(ServerError, match=f"link to {address}: expected `luwu link` to answer there"):
        measure_link(address, SECONDS)


def test_something_else_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=lambda: listener.accept()[0].close()).start()
        address = HostPort("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(ServerError, match="expected `luwu link` to answer there"):
            measure_link(address, SECONDS)
