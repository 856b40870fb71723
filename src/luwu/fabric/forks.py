"""What belongs to one process, and not to those that are forked from it, as a DataLoader forks its workers.

Descriptors are replaced in every forked child by the native core (native/store/forks.h). This is for objects: a child
has copies of them, without their threads, and must neither use nor end what they stand for.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from luwu import _native
from luwu.errors import ForkedError

_made_here: WeakSet[OfThisProcess] = WeakSet()


class OfThisProcess:
    """Base of what a forked child must leave alone. Its destructor does not run in a child."""

    _what = "this object"

    def __init__(self) -> None:
        self._process = os.getpid()
        _made_here.add(self)

    @property
    def forked(self) -> bool:
        """Whether this is a copy, in a child of the process that made it."""
        return os.getpid() != self._process

    def require_process(self) -> None:
        """Raise ForkedError in a child."""
        if self.forked:
            raise ForkedError(
                f"{self._what} belongs to process {self._process}, from which this process ({os.getpid()}) was forked: "
                "use it there alone, or open another one here"
            )


def _keep_copies() -> None:
    # Destructors join threads that a child does not have, and end connections.
    for made in list(_made_here):
        _native.keep_forever(made)


os.register_at_fork(after_in_child=_keep_copies)


def keep_from_children(file: socket.socket | Any) -> None:
    """Have no forked child keep an open file or socket: neither its lock nor its connection."""
    _native.keep_from_children(file.fileno())


def keep_connections_from_children(host: str, port: int) -> None:
    """The same for all connections to an address, for those that gRPC makes."""
    with suppress(OSError):  # a name that cannot be resolved is connected to by nobody
        for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            address = str(found[4][0]).split("%")[0]
            _native.keep_connections_from_children(address, port)
