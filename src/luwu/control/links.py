"""The workers' ends of the network's transports behind one interface. A new transport is one line in `TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from luwu.control import control_pb2 as pb
from luwu.control.credentials import TlsFiles
from luwu.control.timeouts import Timeouts
from luwu.control.wiring import look_up, make_wiring
from luwu.core import native
from luwu.core.division import Division
from luwu.core.manifest import Manifest
from luwu.core.native import block_specs
from luwu.core.protocols import DataEndpoint


class LinkEndpoint(DataEndpoint, Protocol):
    """A data plane whose statistics also count the control plane's time."""

    def count_wait(self, begun_ns: int, waited_since_ns: int) -> None:
        """Count work since ``begun_ns`` and waiting since ``waited_since_ns``, both in ``time.monotonic_ns()``."""
        ...


class WorkerLink(Protocol):
    """A worker's connection to the data plane. Its functions may be called from any thread."""

    def endpoint(self) -> LinkEndpoint:
        """Data plane of pulls, pushes and first values; `begin` and `commit` belong to the control plane."""
        ...

    def begin_step(self, server: int, epoch: int, given_up: bool) -> None:
        """Begin this worker's step at a server: pulls and pushes of its blocks belong to that step from now on.

        Args:
            server: its number. epoch: of its data plane. given_up: another worker has given the step up already.
        """
        ...

    def end_step(self) -> None:
        """End the step, which was committed or rolled back."""
        ...

    def fail(self, class_name: str, message: str) -> None:
        """Have every wait raise this class of `luwu.errors`, now and from now on."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts since the link was opened, and the state of its connections.

        ``broken_seconds``: for each server, the time since a connection to it broke; 0: all are there.
        ``silent_seconds``: for each server, the time since it acknowledged anything, where something that was sent
        waits for it; 0: nothing does. ``networks``, over UDP: counts of each server's tree.
        """
        ...

    def close(self) -> None:
        """End the connection."""
        ...


@dataclass(frozen=True)
class ServerLink:
    """Addresses of one of a link's servers; ``initialised``: the server has first values."""

    address: str
    port: int
    job: int
    token: bytes
    initialised: bool
    topology: pb.Topology
    place: native.UdpPlace | None


@dataclass(frozen=True)
class LinkSettings:
    """The settings of a link; ``shared_window``: a device copies parameters from the worker's memory."""

    servers: list[ServerLink]
    division: Division
    rank: int
    workers: int
    manifest: Manifest
    tls: TlsFiles | None
    timeouts: Timeouts
    shared_window: bool


OpenLink = Callable[[LinkSettings], WorkerLink]


def native_timing(timeouts: Timeouts) -> native.Timing:
    """The data plane's part of the timeouts."""
    return native.Timing(
        hello_seconds=timeouts.hello_seconds,
        silence_seconds=timeouts.silence_seconds,
        backoff_seconds=timeouts.backoff_seconds,
        longest_backoff_seconds=timeouts.longest_backoff_seconds,
        farewell_seconds=timeouts.farewell_seconds,
    )


class TcpLink:
    """Link whose steps are not separate: a message belongs to the step that the server is in."""

    def __init__(self, native: native.TcpWorker) -> None:
        self.endpoint = native.endpoint
        self.fail = native.fail
        self.stats = native.stats
        self.close = native.close

    def begin_step(self, server: int, epoch: int, given_up: bool) -> None:
        """Do nothing."""

    def end_step(self) -> None:
        """Do nothing."""


def open_tcp(settings: LinkSettings) -> WorkerLink:
    """Connect over TCP, encrypted where there are certificates."""
    return TcpLink(native.TcpWorker(**_common(settings)))


def open_udp(settings: LinkSettings) -> WorkerLink:
    """Connect over TCP, and join the trees that steps travel through."""
    places = [server.place for server in settings.servers if server.place is not None]  # bound before they were told
    link = native.UdpWorker(**_common(settings), places=places)
    for number, server in enumerate(settings.servers):
        network = server.topology.network
        parent = look_up(network.parent_address or server.address, network.parent_port).server
        group = (network.group_address, network.group_port) if network.group_address else None
        wiring = make_wiring(network, server.job, settings.workers, server.topology.incarnation)
        link.start(number, wiring, (parent, network.parent_port), server.topology.position, group)
    return link


def _has_values(settings: LinkSettings, server: ServerLink) -> bool:
    """Return True if first values are held back from a server. A single server refuses them itself."""
    return len(settings.servers) > 1 and server.initialised


def _common(settings: LinkSettings) -> dict[str, Any]:
    return {
        "servers": [
            native.ServerLink(server.address, server.port, server.job, server.token, _has_values(settings, server))
            for server in settings.servers
        ],
        "cuts": [
            [(piece.server, piece.first, piece.elements) for piece in pieces] for pieces in settings.division.pieces
        ],
        "rank": settings.rank,
        "workers": settings.workers,
        "blocks": block_specs(settings.manifest),
        "reconnect_seconds": settings.timeouts.reconnect_seconds,
        "tls": settings.tls.paths if settings.tls is not None else None,
        "timing": native_timing(settings.timeouts),
        "shared_window": settings.shared_window,
    }


TRANSPORTS: dict[str, OpenLink] = {"tcp": open_tcp, "udp": open_udp}
