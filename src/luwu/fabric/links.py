"""The workers' ends of the network's transports behind one interface. A new transport is one line in `TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from luwu import _native
from luwu.fabric import control_pb2 as pb
from luwu.fabric.blocks import block_specs
from luwu.fabric.credentials import TlsFiles
from luwu.fabric.timeouts import Timeouts
from luwu.fabric.wiring import look_up, make_wiring
from luwu.store.manifest import Manifest
from luwu.worker.interface import DataEndpoint


class WorkerLink(Protocol):
    """A worker's connection to the data plane. Its functions may be called from any thread."""

    def endpoint(self, shared_window: bool = False) -> DataEndpoint:
        """Pull, push and first values; `begin` and `commit` are the control plane's."""
        ...

    def begin_step(self, epoch: int, given_up: bool) -> None:
        """The server has begun this worker's step: pulls and pushes are its from now on.

        Args:
            epoch: of the data plane. given_up: another worker has given the step up already.
        """
        ...

    def end_step(self) -> None:
        """The step was committed or rolled back."""
        ...

    def fail(self, class_name: str, message: str) -> None:
        """Have every wait raise this class of `luwu.errors`, now and from now on."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts since the link was opened."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


@dataclass(frozen=True)
class LinkSettings:
    """What a link needs to know."""

    address: str
    port: int
    job: int
    rank: int
    workers: int
    token: bytes
    manifest: Manifest
    tls: TlsFiles | None
    timeouts: Timeouts
    topology: pb.Topology
    place: _native.UdpPlace | None


OpenLink = Callable[[LinkSettings], WorkerLink]


def native_timing(timeouts: Timeouts) -> _native.Timing:
    """The data plane's part of the timeouts."""
    return _native.Timing(
        hello_seconds=timeouts.hello_seconds,
        silence_seconds=timeouts.silence_seconds,
        backoff_seconds=timeouts.backoff_seconds,
        longest_backoff_seconds=timeouts.longest_backoff_seconds,
        farewell_seconds=timeouts.farewell_seconds,
    )


class TcpLink:
    """A link whose steps are nothing apart: whatever comes belongs to the step that the server is in."""

    def __init__(self, native: _native.RemoteWorker) -> None:
        self.endpoint = native.endpoint
        self.fail = native.fail
        self.stats = native.stats
        self.close = native.close

    def begin_step(self, epoch: int, given_up: bool) -> None:
        """Nothing changes."""

    def end_step(self) -> None:
        """Nothing changes."""


def open_tcp(settings: LinkSettings) -> WorkerLink:
    """Connect over TCP, encrypted where there are certificates."""
    return TcpLink(_native.RemoteWorker(**_common(settings)))


def open_udp(settings: LinkSettings) -> WorkerLink:
    """Connect over TCP, and hang on the tree that steps travel through."""
    assert settings.place is not None  # bound before the server could be told
    topology, network = settings.topology, settings.topology.network
    link = _native.UdpWorker(**_common(settings), place=settings.place)
    parent = look_up(network.parent_address or settings.address, network.parent_port).server
    group = (network.group_address, network.group_port) if network.group_address else None
    wiring = make_wiring(network, settings.job, settings.workers)
    link.start(wiring, (parent, network.parent_port), topology.position, group)
    return link


def _common(settings: LinkSettings) -> dict[str, Any]:
    return {
        "address": settings.address,
        "port": settings.port,
        "job": settings.job,
        "rank": settings.rank,
        "workers": settings.workers,
        "token": settings.token,
        "blocks": block_specs(settings.manifest),
        "parameter_dtype": settings.manifest.dtype,
        "reconnect_seconds": settings.timeouts.reconnect_seconds,
        "tls": settings.tls.paths if settings.tls is not None else None,
        "timing": native_timing(settings.timeouts),
    }


TRANSPORTS: dict[str, OpenLink] = {"tcp": open_tcp, "udp": open_udp}
