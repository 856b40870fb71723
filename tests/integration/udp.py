"""A server of UDP in this process, its switches, and workers in threads: for tests of training over UDP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.network import KEY

from harness.warm import start_program
from luwu.control.credentials import Credentials
from luwu.control.timeouts import Timeouts
from luwu.server.network import NetworkServer
from luwu.server.server import LocalServer
from luwu.server.settings import ServerSettings
from luwu.session.local import join
from luwu.session.remote import connect
from luwu.session.session import Session
from luwu.switch.service import SwitchService
from luwu.switch.settings import SwitchSettings

MEMORY = 64 << 20
CREDENTIALS = Credentials(KEY.encode())
QUICK = Timeouts(
    connect_seconds=60, look_seconds=0.05, drain_seconds=1, rejoin_seconds=60, gather_seconds=90, leave_seconds=20
)

Found = TypeVar("Found")
Join = Callable[[int], Session]


def udp_server(store: Path, workers: int, timeouts: Timeouts = QUICK, **settings: Any) -> NetworkServer:
    """A server of UDP over loopback; ports are the kernel's choice."""
    wanted = {"listen": "127.0.0.1:0", "memory": MEMORY, "transport": "udp"} | settings
    return NetworkServer(ServerSettings(stores=(store,), workers=workers, **wanted), CREDENTIALS, timeouts)


def udp_switch(server: str, name: str, timeouts: Timeouts = QUICK, **settings: Any) -> SwitchService:
    """A switch in this process."""
    wanted = {"listen": "127.0.0.1:0"} | settings
    return SwitchService(SwitchSettings(server=server, name=name, **wanted), CREDENTIALS, timeouts)


@contextmanager
def udp_tree(store: Path, workers: int, switches: tuple[tuple[str, str], ...] = (), **settings: Any) -> Iterator[str]:
    """A server with switches of these (name, name of the parent); its URL."""
    with ExitStack() as stack:
        server = stack.enter_context(udp_server(store, workers, switches=len(switches), **settings))
        for name, parent in switches:
            stack.enter_context(udp_switch(server.url, name, parent=parent))
        yield server.url


class SwitchProcess:
    """`luwu switch` in its own process, with its ``address`` once it listens. ``before``: a command that starts it."""

    def __init__(
        self, folder: Path, server: str, *flags: str, name: str = "s", key: str = KEY, before: Sequence[str] = ()
    ) -> None:
        self.log = folder / f"switch-{name}.log"
        command = [*before, sys.executable, "-m", "luwu.cli", "switch", "--server", server, "--name", name]
        with self.log.open("ab") as log:
            self.process = start_program(
                [*command, *(flags or ("--listen", "127.0.0.1:0"))],
                stdout=subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("LUWU_")}
                | {"LUWU_JOB_KEY": key},
                text=True,
            )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()  # ends with the process, whatever happens

    def __enter__(self) -> SwitchProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()


def in_threads(workers: int, work: Callable[[int], Found]) -> list[Found]:
    """Return the results of `work(rank)` by rank; raise the error of the first that raised."""
    with ThreadPoolExecutor(workers) as pool:
        return [future.result() for future in [pool.submit(work, rank) for rank in range(workers)]]


def remote(url: str, workers: int, **settings: Any) -> Join:
    """Joins a server on the network."""
    return lambda rank: connect(url, rank=rank, workers=workers, key=KEY, timeouts=QUICK, **settings)


@contextmanager
def local_server(run: Path, workers: int, **settings: Any) -> Iterator[Join]:
    """A server of this host; gives what joins it. Its store is `run`/store."""
    with LocalServer(run, None, MEMORY, workers, **settings) as server:
        yield lambda rank: join(server.socket_path, rank, workers)


def train(
    joined: Join,
    workers: int,
    work: Callable[[NumpyWorker], Found],
    *,
    coarse: bool = False,
    dtype: str = "float32",
    optimizer: str = "adamw",
) -> list[Found]:
    """Has each worker of a set do `work`, and leave."""

    def one(rank: int) -> Found:
        with joined(rank) as session:
            return work(NumpyWorker(session, small_manifest(dtype=dtype, optimizer=optimizer), coarse=coarse))

    return in_threads(workers, one)


def steps(count: int) -> Callable[[NumpyWorker], None]:
    """Return work that makes ``count`` steps."""

    def work(worker: NumpyWorker) -> None:
        for _ in range(count):
            assert worker.step()

    return work
