"""Speed of the link to another machine: TCP each way, alone and both at once, and the time until an answer.

`LinkAnswerer` runs on the other machine (`luwu link`); `measure_link` asks it. Nothing but zeros is carried, for ten
seconds at most, to whoever asks.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import statistics
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from luwu.control.address import HostPort
from luwu.control.waiting import saying
from luwu.core.errors import ServerError

log = logging.getLogger(__name__)

STREAMS = 4
"""Streams at once in each direction. One alone may be bound by a processor."""

PIECE_BYTES = 1 << 20
MOST_SECONDS = 10.0
MOST_CONNECTIONS = 4 * STREAMS
PATIENCE_SECONDS = 10.0
STOP_SECONDS = 0.1
ANSWERS = 100

MAGIC = b"luwu-link-1"
HELLO = struct.Struct(f"!{len(MAGIC)}scd")  # the request, and its seconds
COUNT = struct.Struct("!Q")
TO, BACK, ECHO = b"<", b">", b"."


@dataclass(frozen=True)
class LinkRates:
    """Bytes a second to the other machine, back, and both ways at once together; seconds until an answer comes."""

    to_rate: float
    back_rate: float
    both_rate: float
    answer_seconds: float

    @property
    def one_way(self) -> float:
        """Bytes per second that can be counted on in both directions."""
        return min(self.to_rate, self.back_rate, self.both_rate / 2)


def measure_link(other: HostPort, seconds: float) -> LinkRates:
    """Measure the link to a machine where `luwu link` listens, three ways, each for ``seconds``.

    Raises:
        ServerError: it is not reached, or does not answer as one.
    """
    try:
        with saying(log, f"luwu link at {other}, which does not answer yet,", PATIENCE_SECONDS):
            answer_seconds = _answer_seconds(other)
        return LinkRates(
            answer_seconds=answer_seconds,
            to_rate=_rate(other, [TO] * STREAMS, seconds),
            back_rate=_rate(other, [BACK] * STREAMS, seconds),
            both_rate=_rate(other, [TO, BACK] * STREAMS, seconds),
        )
    except (OSError, struct.error) as error:
        raise ServerError(
            f"link to {other}: expected `luwu link` to answer there, found: {error}; start it on that machine, with an "
            "address that this one reaches"
        ) from None


def _connect(other: HostPort, wanted: bytes, seconds: float) -> socket.socket:
    connection = socket.create_connection((other.host, other.port), PATIENCE_SECONDS)
    connection.settimeout(PATIENCE_SECONDS + seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(HELLO.pack(MAGIC, wanted, seconds))
    return connection


def _answer_seconds(other: HostPort) -> float:
    found = []
    with _connect(other, ECHO, MOST_SECONDS) as connection:
        for _ in range(ANSWERS):
            began = time.perf_counter()
            connection.sendall(b"?")
            if connection.recv(1) != b"?":
                raise ConnectionError("another answer")
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def _rate(other: HostPort, wanted: Sequence[bytes], seconds: float) -> float:
    """Return the bytes per second of all streams together, from the first byte of the first to the last of the last."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_connect(other, each, seconds)) for each in wanted]
        began = time.perf_counter()
        with ThreadPoolExecutor(len(wanted)) as pool:
            carried = list(pool.map(lambda each, way: _carry(each, way, seconds), connections, wanted))
        return sum(carried) / (time.perf_counter() - began)


def _carry(connection: socket.socket, wanted: bytes, seconds: float) -> int:
    """Bytes of one stream, which the receiver counts."""
    if wanted == BACK:
        return receive_all(connection, seconds)
    send_for(connection, seconds)
    connection.shutdown(socket.SHUT_WR)
    return int(COUNT.unpack(_receive(connection, COUNT.size))[0])


def send_for(connection: socket.socket, seconds: float) -> None:
    """Send zeros for ``seconds``."""
    piece, end = bytes(PIECE_BYTES), time.perf_counter() + seconds
    while time.perf_counter() < end:
        connection.sendall(piece)


def receive_all(connection: socket.socket, seconds: float) -> int:
    """Return the bytes that came until the other end stopped, after ``seconds``; TimeoutError if it goes on."""
    into, received = bytearray(PIECE_BYTES), 0
    end = time.perf_counter() + seconds + PATIENCE_SECONDS
    while count := connection.recv_into(into):
        received += count
        if time.perf_counter() > end:
            raise TimeoutError("the other end does not stop sending")
    return received


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise ConnectionError("the connection ended early")
        received += piece
    return received


class LinkAnswerer(socketserver.ThreadingTCPServer):
    """Answers `measure_link` of other machines from a thread of its own until it is closed, at ``address``.

    Raises:
        OSError: it cannot listen there.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # requests under way end by themselves
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, listen: HostPort) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((listen.host, listen.port), Answer)
        self.address = HostPort(listen.host, self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, args=(STOP_SECONDS,), name="luwu-link", daemon=True)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def verify_request(self, request: object, client_address: object) -> bool:
        """Return True if there is room for one more connection; otherwise the connection is closed."""
        return self._room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one, in a thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()


class Answer(socketserver.BaseRequestHandler):
    """Handler of one connection, whoever made it."""

    def handle(self) -> None:
        """Do what the request asks for, as far as the connection lasts."""
        with contextlib.suppress(OSError):
            answer(self.request)


def answer(connection: socket.socket) -> None:
    """Do what the other end asks for; an unknown request gets nothing."""
    connection.settimeout(PATIENCE_SECONDS)
    magic, wanted, seconds = HELLO.unpack(_receive(connection, HELLO.size))
    if magic != MAGIC or not 0 < seconds <= MOST_SECONDS:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if wanted == TO:
        connection.sendall(COUNT.pack(receive_all(connection, seconds)))
    elif wanted == BACK:
        send_for(connection, seconds)
    elif wanted == ECHO:
        for _ in range(ANSWERS):
            connection.sendall(_receive(connection, 1))
