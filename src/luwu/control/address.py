"""Addresses of servers: ``luwu://HOST:PORT`` for peers that connect, ``HOST:PORT`` for servers that listen."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

from luwu.core.errors import ConfigError

SCHEME = "luwu://"
DEFAULT_PORT = 7070


@dataclass(frozen=True)
class HostPort:
    """A host by name or number, and a port; 0 lets the kernel choose the port to listen at."""

    host: str
    port: int

    def __str__(self) -> str:
        """HOST:PORT, an IPv6 number in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address as workers write it."""
        return f"{SCHEME}{self}"


def check_host(host: str) -> str:
    """Return a host's name or number; raises ConfigError for a name that no host can have, which nobody can look up."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(
            f"address {host!r}: expected a host's name, of 1 to 63 characters between two dots, found another; "
            "correct it"
        ) from None
    return host


def parse_host_port(text: str, *, lowest_port: int = 0) -> HostPort:
    """Read ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``; without a port it is 7070. Raises ConfigError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]@?#]+))(?::(\d{1,5}))?", text)
    port = int(match[3]) if match and match[3] else DEFAULT_PORT
    if match is None or not lowest_port <= port < 1 << 16:
        raise ConfigError(
            f"address {text!r}: expected HOST:PORT or [IPV6]:PORT with a port from {lowest_port} to 65535, "
            f"such as 10.0.0.9:{DEFAULT_PORT}"
        )
    return HostPort(check_host(match[1] or match[2]), port)


def parse_url(url: str) -> HostPort:
    """Read ``luwu://HOST:PORT``. Raises ConfigError."""
    if not url.startswith(SCHEME):
        raise ConfigError(f"server {url!r}: expected an address such as {SCHEME}10.0.0.9:{DEFAULT_PORT}")
    return parse_host_port(url.removeprefix(SCHEME).rstrip("/"), lowest_port=1)


def parse_urls(urls: str) -> list[HostPort]:
    """Read ``luwu://HOST:PORT``, or those of several servers with commas between. Raises ConfigError."""
    first, *others = urls.split(",")
    servers = [parse_url(first), *(parse_url(SCHEME + other.removeprefix(SCHEME)) for other in others)]
    twice = next((server for number, server in enumerate(servers) if server in servers[:number]), None)
    if twice is not None:
        raise ConfigError(f"server {urls!r}: expected different servers, found {twice} twice")
    return servers


def url_of_server(host: str, port: int) -> str:
    """Return the URL of a server that listens there. One that listens everywhere names its machine."""
    return HostPort(socket.gethostname() if host in ("0.0.0.0", "::") else host, port).url


def why_not_bound(place: HostPort) -> str:
    """Return the operating system's reason for refusing to listen at a place; gRPC does not pass it on."""
    return refusal_to_listen(place) or "the address is not this machine's, or it is in use"


def refusal_to_listen(place: HostPort) -> str:
    """Return the operating system's reason for refusing to listen at a place now; empty if it does not refuse."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def local_address(host: str) -> str:
    """The number of a host to bind to; raises ConfigError."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    check_host(host)
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"address {host!r}: expected a host of this machine, found {error.strerror}") from None


def numeric(bound: str) -> str:
    """Return the address at which this machine reaches a socket of its own that is bound there."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)
