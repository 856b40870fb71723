"""Control messages between a worker and the server of its host: JSON over a Unix socket, with open files beside it.

One message is its length in bytes (4, little-endian), then UTF-8 JSON. An answer is ``{"error": CLASS, "message":
TEXT}`` for an error of `luwu.errors`, else whatever the request asked for.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from luwu.core.errors import LuwuError, ServerError, error_named

PROTOCOL_VERSION = 4
SOCKET_NAME = "luwu.sock"
_LENGTH = struct.Struct("<I")
_LONGEST_BYTES = 1 << 30
_MOST_FILES = 8

Message = dict[str, Any]


def send(connection: socket.socket, message: Message, files: list[int] | None = None) -> None:
    """Send one message, and duplicates of open files with it. Raises OSError."""
    payload = json.dumps(message).encode()
    header = _LENGTH.pack(len(payload))
    if files:
        socket.send_fds(connection, [header], files)
        connection.sendall(payload)
    else:
        connection.sendall(header + payload)


def receive(connection: socket.socket) -> tuple[Message, list[int]] | None:
    """Receive one message and the files that came with it (the caller closes them); None at the end.

    Raises:
        OSError: the connection broke, or the other side speaks another language.
    """
    header, files, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FILES)
    message = None
    try:
        header += _receive(connection, _LENGTH.size - len(header)) if header else b""
        if len(header) == _LENGTH.size:
            message = _receive_object(connection, *_LENGTH.unpack(header))
        return None if message is None else (message, files)
    finally:
        if message is None:
            for file in files:
                os.close(file)


def _receive_object(connection: socket.socket, length: int) -> Message | None:
    """Receive a message's JSON; None at the end."""
    if length > _LONGEST_BYTES:
        raise OSError(f"a control message claims {length} bytes; at most {_LONGEST_BYTES} are allowed")
    payload = _receive(connection, length)
    if len(payload) < length:
        return None
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise OSError(f"a control message is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise OSError(f"a control message is {type(message).__name__} where an object was expected")
    return message


def _receive(connection: socket.socket, length: int) -> bytes:
    """Receive ``length`` bytes; fewer at the end."""
    received = bytearray()
    while len(received) < length:
        part = connection.recv(min(1 << 20, length - len(received)))
        if not part:
            break
        received += part
    return bytes(received)


def error_message(error: LuwuError) -> Message:
    """Return the answer that carries an error to the other side."""
    return {"error": type(error).__name__, "message": str(error)}


def raise_if_error(answer: Message) -> Message:
    """Return an answer, or raise the error of `luwu.errors` that it carries."""
    if "error" in answer:
        raise error_named(str(answer["error"]), ServerError)(answer.get("message", "the server does not say why"))
    return answer


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Return an address for the socket at ``path`` that fits the 108 bytes of a Unix socket's address."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        with suppress(OSError):  # nothing was written there, and the descriptor is gone
            os.close(folder)
