"""Distinguish a port that belongs to another program from a server that is slow to answer; gRPC's errors do not."""

from __future__ import annotations

import socket
import ssl
from enum import Enum

from luwu.control.address import HostPort
from luwu.control.credentials import TlsFiles

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""A client's first bytes in HTTP/2 (RFC 9113, section 3.4), with an empty SETTINGS frame."""

SETTINGS_TYPE = 4
TYPE_OFFSET = 3
FRAME_HEADER_BYTES = 9

TLS_RECORDS = (b"\x15", b"\x16")
"""First bytes of a TLS server: the types of an alert and of a handshake (RFC 8446, section 5.1)."""


class Answer(Enum):
    """Answer of a port to the first bytes of a client."""

    SERVER = "the bytes of a server"
    OTHER = "bytes that are no server's, or TLS that fails"
    CLOSED = "closed without a byte; a server does so, too, where there are too many connections"
    REFUSED = "refused: nothing listens there"
    SILENT = "nothing yet; a server that is busy or stopped is silent, too"


def probe(address: HostPort, seconds: float, tls: TlsFiles | None) -> Answer:
    """Connect to a port as a client does, and return its answer.

    Args:
        address: address to connect to.
        seconds: the longest wait for the connection, and for each answer.
        tls: speak TLS with these files. Without them a port that speaks TLS answers otherwise.
    """
    try:
        with socket.create_connection((address.host, address.port), seconds) as connection:
            if tls is not None:
                return _probe_encrypted(connection, address, tls)
            answer = _exchange(connection, PREFACE)
        if answer:
            return _judge(answer)
        with socket.create_connection((address.host, address.port), seconds) as connection:  # a port with TLS says no
            return Answer.OTHER if _exchange(connection, _client_hello())[:1] in TLS_RECORDS else Answer.CLOSED
    except (ConnectionResetError, BrokenPipeError):
        return Answer.CLOSED
    except ConnectionRefusedError:
        return Answer.REFUSED
    except OSError:
        return Answer.SILENT


def _probe_encrypted(connection: socket.socket, address: HostPort, tls: TlsFiles) -> Answer:
    certificate, key, authority = tls.paths
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(authority)
        context.load_cert_chain(certificate, key)
        context.set_alpn_protocols(["h2"])
        encrypted = context.wrap_socket(connection, server_hostname=address.host)
    except ssl.SSLEOFError:
        return Answer.CLOSED
    except ssl.SSLError:
        return Answer.OTHER
    with encrypted:  # a server that does not accept this certificate closes now
        try:
            return _judge(_exchange(encrypted, PREFACE))
        except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
            return Answer.OTHER


def _judge(answer: bytes) -> Answer:
    settings = answer[TYPE_OFFSET : TYPE_OFFSET + 1] == bytes([SETTINGS_TYPE])
    return Answer.SERVER if settings else Answer.OTHER


def _exchange(connection: socket.socket, sent: bytes) -> bytes:
    """Send and return the first bytes of the answer, of which there are none where the connection is closed first."""
    connection.sendall(sent)
    answer = b""
    while len(answer) < FRAME_HEADER_BYTES and (more := connection.recv(FRAME_HEADER_BYTES - len(answer))):
        answer += more
    return answer


def _client_hello() -> bytes:
    """Return the first bytes that a client of TLS sends."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(received, sent, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake needs an answer")
