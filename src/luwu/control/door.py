"""The control plane's door: limits peers that have not yet proved who they are."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from luwu.control.address import HostPort, why_not_bound
from luwu.control.credentials import TlsFiles
from luwu.control.rpc import channel_options
from luwu.control.timeouts import Timeouts
from luwu.core import native
from luwu.core.errors import LuwuError, ServerError

PEER_SCHEME = "unix-abstract:"
"""Prefix that gRPC puts before the name of a client's socket in the abstract namespace."""

SPARE_THREADS = 64
"""Threads of the control plane beside one for each worker: for switches, for peers that join, and for health checks."""

FEWEST_STRANGERS = 64
"""Most connections that have sent something without a proof; more where many workers may connect at once."""

MOST_CALLS = 8
"""Most calls under way on one connection; a worker makes five at most."""


def make_grpc(workers: int, strangers: int, timeouts: Timeouts) -> grpc.Server:
    """Make a gRPC server for behind the door, which has no port and no service yet.

    A call takes a thread when its headers come, before its message: there are more threads than strangers can have
    calls.
    """
    threads = 3 * workers + SPARE_THREADS + strangers * MOST_CALLS
    return grpc.server(
        ThreadPoolExecutor(threads, thread_name_prefix="luwu-control"),
        options=[*channel_options(timeouts), ("grpc.max_concurrent_streams", MOST_CALLS)],
    )


def answer_health(server: grpc.Server) -> health.HealthServicer:
    """Add health checks to a gRPC server, whose answer is "not serving" until the servicer, which is returned, is told.

    A watch takes a thread of the server. The servicer's way without threads sends answers with its lock held, waits for
    the watcher meanwhile, and needs that lock when a watcher has gone: then nothing is served any more.
    """
    servicer = health.HealthServicer(experimental_non_blocking=False)
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return servicer


def bind_inside(server: grpc.Server, door: ControlDoor, tls: TlsFiles | None) -> None:
    """Have a gRPC server serve behind a door, with TLS where there are certificates."""
    if tls is None:
        server.add_insecure_port(door.inside)
    else:
        certificate, key, authority = tls.read()
        own = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        server.add_secure_port(door.inside, own)


class ControlDoor:
    """Listens for the control plane and passes bytes on to gRPC, which serves at `inside` alone.

    A connection that has not been admitted may send 32 KiB within ``challenge_seconds``. Where there are too many of
    them, the oldest of the address that has the most is closed. One address may bring twice as many as there may be at
    once, and five each second in the long run; those that are admitted do not count.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._folder = tempfile.TemporaryDirectory(prefix="luwu-door-")  # for this user alone
        self._socket = -1
        self._native: native.Door | None = None

    @property
    def inside(self) -> str:
        """The address at which gRPC serves."""
        return f"unix:{self._path}"

    def open(self, listen: HostPort, most_strangers: int) -> int:
        """Let connections in, once gRPC serves, and return the port. Raises ServerError; another port may be tried."""
        timing = native.Timing(
            hello_seconds=self._timeouts.hello_seconds,
            silence_seconds=self._timeouts.keepalive_timeout_seconds,
            backoff_seconds=self._timeouts.backoff_seconds,
            longest_backoff_seconds=self._timeouts.longest_backoff_seconds,
            farewell_seconds=self._timeouts.farewell_seconds,
        )
        # The door reaches the socket through this descriptor and not by name, so that a killed server leaves no file.
        if self._socket < 0:
            self._socket = os.open(self._path, os.O_PATH | os.O_CLOEXEC)
            self._folder.cleanup()
        inside = f"/proc/self/fd/{self._socket}"
        try:
            self._native = native.Door(
                address=listen.host, port=listen.port, inside=inside, most_strangers=most_strangers,
                burst=2 * most_strangers,
                patience_seconds=self._timeouts.challenge_seconds, timing=timing,
            )  # fmt: skip
        except LuwuError:
            raise ServerError(
                f"cannot listen at {listen}: {why_not_bound(listen)}; choose another --listen address, or end who "
                "listens there"
            ) from None
        return int(self._native.port)

    def peer(self, name: str) -> str:
        """Return the HOST:PORT of a connection's client, by gRPC's name for the connection; "gone" if it has ended."""
        found = self._native.peer(name.removeprefix(PEER_SCHEME)) if self._native is not None else None
        return found or "gone"

    def admit(self, name: str) -> None:
        """Lift the limits of the connection that gRPC knows by this name."""
        if self._native is not None:
            self._native.admit(name.removeprefix(PEER_SCHEME))

    def counts(self) -> dict[str, int]:
        """The number of connections that were closed, by reason, and of those that are open."""
        return dict(self._native.counts()) if self._native is not None else {}

    def shut(self) -> None:
        """Accept no connections any more."""
        if self._native is not None:
            self._native.shut()

    def close(self) -> None:
        """Close the connections after they have passed on gRPC's last bytes."""
        if self._native is not None:
            self._native.close()
        self._folder.cleanup()
        if self._socket >= 0:
            os.close(self._socket)
            self._socket = -1

    @property
    def _path(self) -> Path:
        return Path(self._folder.name, "control")
