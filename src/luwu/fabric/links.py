"""The workers' ends of the network's transports behind one interface. A new transport is one line in `TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from luwu import _native
from luwu.fabric.blocks import block_specs
from luwu.fabric.credentials import TlsFiles
from luwu.fabric.timeouts import Timeouts
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
        reconnect_seconds=settings.timeouts.reconnect_seconds,
        tls=settings.tls.paths if settings.tls is not None else None,
        timing=native_timing(settings.timeouts),
    )


TRANSPORTS: dict[str, OpenLink] = {"tcp": open_tcp}
