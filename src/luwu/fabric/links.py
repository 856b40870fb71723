"""The workers' ends of the network's transports behind one interface. A new transport is one line in `TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from luwu import _native
from luwu.fabric.blocks import block_specs
from luwu.store.manifest import Manifest
from luwu.worker.interface import DataEndpoint


class WorkerLink(Protocol):
    """A worker's connection to the data plane. Its functions may be called from any thread."""

    def endpoint(self, shared_window: bool = False) -> DataEndpoint:
        """Pull, push and first values; `begin` and `commit` are the control plane's."""
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
    """What a link needs to know. ``tls``: PEM text of certificate, key and authority."""

    address: str
    port: int
    job: int
    rank: int
    workers: int
    token: bytes
    manifest: Manifest
    reconnect_seconds: float
    tls: tuple[bytes, bytes, bytes] | None


OpenLink = Callable[[LinkSettings], WorkerLink]


def open_tcp(settings: LinkSettings) -> WorkerLink:
    """Connect over TCP, encrypted where there are certificates."""
    return _native.RemoteWorker(
        address=settings.address,
        port=settings.port,
        job=settings.job,
        rank=settings.rank,
        workers=settings.workers,
        token=settings.token,
        blocks=block_specs(settings.manifest),
        parameter_dtype=settings.manifest.dtype,
        reconnect_seconds=settings.reconnect_seconds,
        tls=settings.tls,
    )


TRANSPORTS: dict[str, OpenLink] = {"tcp": open_tcp}
