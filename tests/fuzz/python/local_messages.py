"""Control messages on one host: what comes through the Unix socket, and what an answer is."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from tests.fuzz.python.support import Input, allowing, edited

from luwu.control.messages import raise_if_error, receive, send
from luwu.errors import LuwuError

MESSAGE = {"error": "ConfigError", "message": "why", "type": "attach", "manifest": "{}", "segments": [[1, 0]]}
PATIENCE_SECONDS = 0.5


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    payload = edited(MESSAGE, given)
    length = given.number(4) if mode & 1 else len(payload)
    stream = (struct.pack("<I", length) + payload)[: given.number(2) if mode & 2 else None]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(PATIENCE_SECONDS)
        before = _open_files()
        if mode & 4 and stream:
            socket.send_fds(theirs, [stream[:4]], [ours.fileno()] * (mode // 64))
            stream = stream[4:]
        theirs.sendall(stream)
        theirs.shutdown(socket.SHUT_WR)
        received = allowing(OSError, lambda: receive(ours))
        files = received[1] if received is not None else []
        for file in files:
            os.close(file)
        assert _open_files() == before, "files are the caller's, or closed"
        if received is None:
            return
        message = received[0]
        assert isinstance(message, dict), "a message is an object"
        allowing(LuwuError, lambda: raise_if_error(message))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, message, [theirs.fileno()] * (mode // 8 % 2))
        again = receive(ours)
        for file in again[1] if again is not None else ():
            os.close(file)
        assert again is not None and repr(again[0]) == repr(message), "a message is read as it was written"
