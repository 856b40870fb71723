"""The native servers of the network's transports behind one interface. A new transport is one line in `TRANSPORTS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from luwu.control.address import local_address
from luwu.control.credentials import TlsFiles
from luwu.control.links import native_timing
from luwu.control.timeouts import Timeouts
from luwu.core import native
from luwu.core.division import Share
from luwu.core.durability import EACH_STEP, CommitPoints
from luwu.core.native import block_specs
from luwu.core.protocols import LossScale
from luwu.server.lent import Core
from luwu.store.opening import Store
from luwu.store.settings import NO_SNAPSHOTS, Snapshots

HyperParameters = Sequence[float]

StepEnding = tuple[int, float | None]
"""0 to 4, as control.proto's StepEnd; with clipping, the averaged gradient's sum of squares, where known."""


class NetworkCore(Core, Protocol):
    """A native server whose workers push and pull over the network, and begin and commit through the control plane."""

    @property
    def findings(self) -> list[str]:
        """Damage to the store's commit records that was found and mended when the store was opened, in words."""
        ...

    @property
    def port(self) -> int:
        """Port of the data plane."""
        ...

    def allow_worker(self, rank: int, token: bytes) -> None:
        """Let this rank into the data plane with this token alone."""
        ...

    def begin(
        self,
        worker: int,
        groups: Sequence[HyperParameters],
        max_norm: float | None,
        loss_scale: LossScale | None,
    ) -> tuple[int, bool, int]:
        """Start a worker's attempt at a step; all bring the same hyper-parameters.

        Raises the error that the run failed with.

        The gradient is divided by the loss scale, and its global norm is then clipped to ``max_norm``, where there are
        such.

        Returns:
            What the worker's data plane wants to know, see `luwu.control.links.WorkerLink.begin_step`, and the number
            of attempts that have ended before this one.
        """
        ...

    def commit(self, worker: int, roll_back: bool, pushes: int) -> None:
        """End a worker's attempt once this many of its pushes since it joined have come. Returns at once."""
        ...

    def wait_commit(self, worker: int, at_most_seconds: float) -> StepEnding | None:
        """Return the end of the attempt, or None if it has not ended. Raises the error that the run failed with."""
        ...

    def decide(self, worker: int, ended: int, commits: bool, squares: float | None) -> None:
        """Commit or roll back the prepared attempt that follows ``ended`` others; the first call counts.

        Returns at once. With clipping, ``squares`` is the sum over all servers.
        """
        ...

    def annul(self, worker: int, ended: int) -> None:
        """Make the attempt that follows ``ended`` others void, because that of another server is. Returns at once."""
        ...

    def wait_ended(self, worker: int, at_most_seconds: float) -> StepEnding | None:
        """Return the end of the attempt that the worker voted on last, or None if it has not ended.

        At once where the worker has not voted since.
        """
        ...


class UdpCore(NetworkCore, Protocol):
    """A core whose steps come over UDP, once `start` has named the network."""

    @property
    def udp_port(self) -> int:
        """UDP port of the data plane."""
        ...

    def start(self, wiring: native.Wiring, child: tuple[str, int], group: tuple[str, int] | None) -> None:
        """Start the network: the child speaks for all workers, parameters go to the group if there is one."""
        ...


@dataclass(frozen=True)
class CoreSettings:
    """Settings of a native server beside its store."""

    memory_bytes: int
    workers: int
    optimizer_threads: int
    address: str
    port: int
    udp_port: int
    job: int
    share: Share
    tls: TlsFiles | None
    timeouts: Timeouts
    snapshots: Snapshots = NO_SNAPSHOTS
    disk_full_wait_seconds: float = 0.0
    commit_points: CommitPoints = EACH_STEP
    standby: native.StandbySender | None = None
    trims: int = 0  # see `luwu.core.aggregation.trims_for`


StartCore = Callable[[Store, CoreSettings], NetworkCore]


def start_tcp(store: Store, settings: CoreSettings) -> NetworkCore:
    """Serve a store over TCP, encrypted where there are certificates."""
    return native.TcpServer(**_common(store, settings))


def start_udp(store: Store, settings: CoreSettings) -> NetworkCore:
    """Serve a store over UDP, and TCP for what is no part of a step."""
    return native.UdpServer(
        **_common(store, settings), udp_address=local_address(settings.address), udp_port=settings.udp_port
    )


def _common(store: Store, settings: CoreSettings) -> dict[str, Any]:
    return {
        "folders": [str(folder) for folder in store.folders],
        "uuid": store.identity.uuid,
        "create": store.create,
        "blocks": block_specs(store.manifest),
        "chunk_elements": store.manifest.chunk_elements,
        "optimizer": store.manifest.optimizer,
        "memory_bytes": settings.memory_bytes,
        "workers": settings.workers,
        "optimizer_threads": settings.optimizer_threads,
        "address": settings.address,
        "port": settings.port,
        "job": settings.job,
        "one_of_several": settings.share.servers > 1,
        "at_step": settings.share.step,
        "tls": settings.tls.paths if settings.tls is not None else None,
        "timing": native_timing(settings.timeouts),
        "snapshots": settings.snapshots,
        "disk_full_wait_seconds": settings.disk_full_wait_seconds,
        "durable": settings.commit_points,
        "standby": settings.standby,
        "trims": settings.trims,
    }


TRANSPORTS: dict[str, StartCore] = {"tcp": start_tcp, "udp": start_udp}
