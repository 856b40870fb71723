"""Ports of this machine that nobody listens at, for programs that cannot let the kernel choose one."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1. Another program may take one before it is used."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
