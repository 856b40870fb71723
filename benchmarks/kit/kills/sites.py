"""The processes of a run that are killed apart: servers, switches and two workers, over one of the transports."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.stored import digest_of
from kit.common import BenchmarkError
from kit.kills import work
from kit.kills.processes import Life, command, files_of, say, watch
from luwu.control.frames import SOCKET_NAME
from luwu.store.opening import open_reader

SHARED_MEMORY, TCP, UDP = "shared memory", "TCP", "UDP"
WORKERS = 2
REAL_EVERY = 4  # every fourth server and switch that is started is `python -m luwu.cli`, the others are forks of it
ANY_PORT = "127.0.0.1:0"


class Site:
    """A run's processes on this machine, in a folder; `lives` has all that ever lived.

    Servers and switches are started where they do not live, always at the address that they had first. A commit point
    comes every ``commit_every`` steps.
    """

    def __init__(
        self, folder: Path, transport: str, servers: int, workers: int = WORKERS, commit_every: int = 1
    ) -> None:
        self.folder, self.transport = folder, transport
        folder.mkdir()
        self.lives: list[Life] = []
        self.servers: list[Life] = []
        self.switches: list[Life] = []
        self.workers: list[Life] = []
        self._servers, self._workers, self._commit_every = servers, workers, commit_every
        self._addresses: dict[str, str] = {}

    @property
    def stores(self) -> list[Path]:
        """The folder of each server's store."""
        if self.transport == SHARED_MEMORY:
            return [self.folder / "run" / "store"]
        return [self.folder / f"store-{number}" for number in range(self._servers)]

    @property
    def nodes(self) -> list[Life]:
        """Servers and switches."""
        return [*self.servers, *self.switches]

    @property
    def url(self) -> str:
        """URL at which workers join all servers."""
        return "luwu://" + ",".join(self._addresses.get(server.name, "") for server in self.servers)

    def start(self) -> None:
        """Start the servers, then the switches, that are not there; return once they listen."""
        self.servers = [self._living(self.servers, number, self._start_server) for number in range(self._servers)]
        self._wait_until_listening(self.servers)
        if self.transport == UDP:
            self.switches = [self._living(self.switches, number, self._start_switch) for number in range(self._servers)]
            self._wait_until_listening(self.switches)

    def start_workers(self, until: int = work.ENDLESS) -> list[Life]:
        """Start a set of workers, which train until they are killed, or to a step."""
        self.workers = []
        for rank in range(self._workers):
            if self.transport == SHARED_MEMORY:
                run = partial(work.local_worker, self.folder / "run" / SOCKET_NAME, rank, self._workers, until)
            else:
                run = partial(work.remote_worker, self.url, rank, self._workers, until)
            self.workers.append(self._add(Life(f"worker {rank}", self.folder / f"worker-{rank}.log", run)))
        return self.workers

    def finish(self, until: int) -> dict[str, Any]:
        """Train to a step, and end everything as a user does; what is there then, as one run has it like another."""
        self.start()
        for worker in self.start_workers(until):
            if worker.wait() != 0:
                raise BenchmarkError(
                    "\n".join(["the last set of workers failed", *(life.tail() for life in self.lives[-6:])])
                )
        self.stop()
        digests = [worker.said["digest"] for worker in self.workers]
        return {
            "parameters": digests,
            "stores": store_digests(self.stores, self.folder / "read.log"),
            "files": self.left(),
        }

    def stop(self) -> None:
        """End switches and servers as a user does."""
        self._stop([*self.switches, *self.servers])

    def end_set(self) -> None:
        """Have the servers ready for the next set of workers: one of shared memory serves a single set."""
        if self.transport == SHARED_MEMORY:
            self._stop([server for server in self.servers if server.status is None])

    def left(self) -> list[str]:
        """Files of the run, without logs."""
        return sorted(name for name in files_of(self.folder) if not name.endswith(".log"))

    def _start_server(self, number: int) -> Life:
        name = f"server {number}"
        log = self.folder / f"server-{number}.log"
        if self.transport == SHARED_MEMORY:
            return Life(name, log, partial(work.local_server, self.folder / "run", self._workers))
        flags = {
            "store": self.stores[number], "workers": self._workers, "memory": work.MEMORY_BYTES,
            "listen": self._addresses.get(name, ANY_PORT), "transport": self.transport.lower(), "optimizer-threads": 1,
            "switches": int(self.transport == UDP), "durable": f"{self._commit_every} steps",
        }  # fmt: skip
        return self._luwu(name, log, "server", flags | {"memory": f"{work.MEMORY_BYTES >> 20}MiB"})

    def _start_switch(self, number: int) -> Life:
        name = f"switch {number}"
        flags = {
            "server": f"luwu://{self._addresses[f'server {number}']}", "name": "one",
            "listen": self._addresses.get(name, ANY_PORT),
        }  # fmt: skip
        return self._luwu(name, self.folder / f"switch-{number}.log", "switch", flags)

    def _luwu(self, name: str, log: Path, what: str, flags: dict[str, Any]) -> Life:
        words = [what, *(word for flag, value in flags.items() for word in (f"--{flag}", str(value)))]
        started = sum(life.name == name for life in self.lives)
        if started % REAL_EVERY == REAL_EVERY - 1:
            return command(name, log, ["-m", "luwu.cli", *words])
        return Life(name, log, partial(work.run_luwu, *words))

    def _living(self, nodes: Sequence[Life], number: int, start: Any) -> Life:
        if number < len(nodes) and nodes[number].status is None:
            return nodes[number]
        return self._add(start(number))

    def _stop(self, nodes: Sequence[Life]) -> None:
        """End servers and switches as a user does; they must end well."""
        for node in nodes:
            node.signal(signal.SIGTERM)
        ends = [node.wait() for node in nodes]
        if any(ends):
            raise BenchmarkError("\n".join([f"exit statuses {ends} after SIGTERM", *(node.tail() for node in nodes)]))

    def _add(self, life: Life) -> Life:
        self.lives.append(life)
        return life

    def _wait_until_listening(self, nodes: Sequence[Life]) -> None:
        def listening(node: Life) -> bool:
            if node.status is not None:
                raise BenchmarkError(f"it ended before it listened\n{node.tail()}")
            return bool(node.texts) or "listening" in node.said

        watch(nodes, lambda: all(map(listening, nodes)), "servers and switches to listen")
        for node in nodes:
            if node.texts:
                self._addresses[node.name] = node.texts[0].removeprefix("luwu://")


def store_digests(stores: Sequence[Path], log: Path) -> list[str]:
    """SHA-256 of everything that each of these stores holds, read in a process of its own."""

    def read() -> None:
        for store in stores:
            reader, manifest = open_reader([store])
            say(digests=digest_of(reader, len(manifest.blocks), repr(list(reader.counts))))

    found: list[str] = []
    for store in stores:
        life = Life(f"the reader of {store}", log, read)
        if life.wait() != 0:
            raise BenchmarkError(f"{store} cannot be read\n{life.tail()}")
        found.append(life.said["digests"])
    return found
