"""Messages of a stranger to `luwu link`, and answers to whoever measures a link to it."""

from __future__ import annotations

import contextlib
import socket
from unittest.mock import patch

from tests.fuzz.python.support import Input

from luwu.control.address import HostPort
from luwu.errors import ServerError
from luwu.probe import link

PATIENCE_SECONDS = 0.05
SECONDS = 0.0002
PIECE_BYTES = 1024


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    with (
        patch.object(link, "PATIENCE_SECONDS", PATIENCE_SECONDS),
        patch.object(link, "MOST_SECONDS", SECONDS),
        patch.object(link, "PIECE_BYTES", PIECE_BYTES),
    ):
        if mode % 2:
            _ask(given)
        else:
            _answer(given, mode)


def _answer(given: Input, mode: int) -> None:
    wanted = (link.TO, link.BACK, link.ECHO, given.bytes(1).ljust(1, b"?"))[mode // 4 % 4]
    seconds = (SECONDS / 2, float("nan"), float("inf"), -1.0)[mode // 16 % 4]
    hello = given.rest() if mode & 2 else link.HELLO.pack(link.MAGIC, wanted, seconds) + given.rest()
    ours, theirs = _pair()
    with ours, theirs:
        theirs.sendall(hello)
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            link.answer(ours)
        sent = len(_received(theirs))
    if not hello.startswith(link.MAGIC):
        assert not sent, "a stranger gets nothing"


def _ask(given: Input) -> None:
    others: list[socket.socket] = []

    def connect(*_: object) -> socket.socket:
        ours, theirs = _pair()
        others.append(theirs)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(b"?" * (given.number() % 128) + given.bytes(given.number() % 16))
        theirs.shutdown(socket.SHUT_WR)
        return ours

    with patch.object(link.socket, "create_connection", connect), contextlib.suppress(ServerError):
        rates = link.measure_link(HostPort("other", 1), SECONDS)
        assert rates.one_way >= 0
    for other in others:
        other.close()


class _Connected(socket.socket):
    """An end of a pair that takes the options of TCP."""

    def setsockopt(self, level: int, *rest: object) -> None:
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, *rest)


def _pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    ours, theirs = (_Connected(each.family, each.type, fileno=each.detach()) for each in pair)
    for each in (ours, theirs):
        each.settimeout(PATIENCE_SECONDS)
    return ours, theirs


def _received(connection: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(1 << 20):
            found += part
    return found
