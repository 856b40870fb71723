"""Distinguish a port that belongs to another program from a server that is slow to answer; gRPC's errors do not."""

from __future__ import annotations

import socket
import ssl

from luwu.control.address import HostPort

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""A client's first bytes in HTTP/2 (RFC 9113, section 3.4), with an empty SETTINGS frame."""

SETTINGS_TYPE = 4
TYPE_OFFSET = 3
FRAME_HEADER_BYTES = 9


def answers_otherwise(address: HostPort, seconds: float, *, tls: bool) -> bool:
    """Return True if a port takes a connection and then closes it, or answers unlike a server.

    Args:
        address: address to connect to.
        seconds: the longest wait for the connection, and for the answer. Silence is no answer: a server that is busy
            or stopped is silent, too.
        tls: speak TLS. Then any answer counts, because whatever TLS servers agree on comes later.
    """
    try:
        with socket.create_connection((address.host, address.port), seconds) as connection:
            connection.sendall(_client_hello() if tls else PREFACE)
            answer = connection.recv(FRAME_HEADER_BYTES)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return tls or len(answer) <= TYPE_OFFSET or answer[TYPE_OFFSET] != SETTINGS_TYPE


def _client_hello() -> bytes:
    """Return the first bytes that a client of TLS sends."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(received, sent, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake needs an answer")
