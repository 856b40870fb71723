"""Frames of the control plane on a Unix socket: calls of control.proto's methods, answers, and open files beside them.

gRPC carries the same methods between machines. docs/decisions/0017-control-service.md says why it does not carry them
here.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from luwu.control import control_pb2 as pb
from luwu.core.errors import LuwuError, ServerError, error_named

SOCKET_NAME = "luwu.sock"
_LENGTH = struct.Struct("<I")
_LONGEST_BYTES = 1 << 30
_MOST_FILES = 8

FrameT = TypeVar("FrameT", pb.Call, pb.Answer)


class Method(NamedTuple):
    """A method of control.proto with the classes of its messages."""

    name: str
    request: type[Message]
    reply: type[Message]


_SERVICE = pb.DESCRIPTOR.services_by_name["Control"]
METHODS = {
    method.name: Method(method.name, GetMessageClass(method.input_type), GetMessageClass(method.output_type))
    for method in _SERVICE.methods
}
"""Methods of the control plane, by name."""


def send(connection: socket.socket, frame: pb.Call | pb.Answer, files: list[int] | None = None) -> None:
    """Send one frame, and duplicates of open files with it. Raises OSError."""
    payload = frame.SerializeToString()
    header = _LENGTH.pack(len(payload))
    if files:
        socket.send_fds(connection, [header], files)
        connection.sendall(payload)
    else:
        connection.sendall(header + payload)


def receive(connection: socket.socket, kind: type[FrameT]) -> tuple[FrameT, list[int]] | None:
    """Receive one frame and the files that came with it (the caller closes them); None at the end.

    Raises:
        OSError: the connection broke, or the other side does not use this protocol.
    """
    header, files, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FILES, socket.MSG_CMSG_CLOEXEC)
    frame = None
    try:
        header += _receive(connection, _LENGTH.size - len(header)) if header else b""
        if len(header) == _LENGTH.size:
            frame = _receive_frame(connection, kind, *_LENGTH.unpack(header))
        return None if frame is None else (frame, files)
    finally:
        if frame is None:
            for file in files:
                os.close(file)


def _receive_frame(connection: socket.socket, kind: type[FrameT], length: int) -> FrameT | None:
    """Receive a frame's message; None at the end."""
    if length > _LONGEST_BYTES:
        raise OSError(f"a control message claims {length} bytes; at most {_LONGEST_BYTES} are allowed")
    payload = _receive(connection, length)
    return decode(kind, payload) if len(payload) == length else None


def _receive(connection: socket.socket, length: int) -> bytes:
    """Receive ``length`` bytes; fewer at the end."""
    received = bytearray()
    while len(received) < length:
        part = connection.recv(min(1 << 20, length - len(received)))
        if not part:
            break
        received += part
    return bytes(received)


def decode(kind: type[Any], payload: bytes) -> Any:
    """Return the message of a class of control.proto that these bytes are. Raises OSError."""
    try:
        return kind.FromString(payload)
    except DecodeError:
        raise OSError(f"a control message is no {kind.DESCRIPTOR.name}") from None


def failure_of(error: LuwuError) -> pb.Answer:
    """Return the answer that carries an error to the other side."""
    text = str(error).encode("utf-8", "backslashreplace").decode()  # a path need not be text
    return pb.Answer(failure=pb.Failure(error=type(error).__name__, message=text))


def reply_of(answer: pb.Answer, method: Method) -> Any:
    """Return the reply in an answer, or raise the error of `luwu.errors` that it carries.

    Raises OSError where the answer is not this method's.
    """
    if answer.HasField("failure"):
        raise error_named(answer.failure.error, ServerError)(answer.failure.message or "the server does not say why")
    return decode(method.reply, answer.reply)


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Return an address for the socket at ``path`` that fits the 108 bytes of a Unix socket's address."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        with suppress(OSError):  # nothing was written there, and the descriptor is gone
            os.close(folder)
