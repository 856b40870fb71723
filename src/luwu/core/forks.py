"""Objects and descriptors that belong to one process, and not to its forked children, such as a DataLoader's workers.

The native core replaces descriptors in every forked child (native/store/forks.h). This module is for objects: a child
has copies of them, without their threads, and must neither use nor end the connection or server behind them.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from luwu.core import native
from luwu.core.errors import ForkedError

_made_here: WeakSet[OfThisProcess] = WeakSet()


class OfThisProcess:
    """Base of objects that a forked child must not use. Their destructors do not run in a child."""

    _what = "this object"

    def __init__(self) -> None:
        self._process = os.getpid()
        _made_here.add(self)

    @property
    def forked(self) -> bool:
        """True for a copy in a child of the process that made the object."""
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
        native.keep_forever(made)


os.register_at_fork(after_in_child=_keep_copies)


def keep_from_children(file: socket.socket | Any) -> None:
    """Keep an open file or socket from forked children, and with it its lock or connection."""
    native.keep_from_children(file.fileno())


def keep_connections_from_children(host: str, port: int) -> None:
    """Keep all connections to an address from forked children; for gRPC, which hides its sockets."""
    with suppress(OSError):  # nobody can connect to a name that cannot be resolved
        for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            address = str(found[4][0]).split("%")[0]
            native.keep_connections_from_children(address, port)
