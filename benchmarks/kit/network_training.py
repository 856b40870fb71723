"""Training over UDP for the benchmarks: hosts around one Ethernet switch, a server, an adding switch, and workers."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness.network import Host, Network, NetworkError, NetworkUnavailableError, Process
from harness.network.namespaces import wait_until
from harness.network.xdp import bridge_host, counted
from harness.warm import start_program
from kit.common import PROGRAMS, BenchmarkError, NotInstalledError
from kit.processes import environment

KEY = {"LUWU_JOB_KEY": "the key of a benchmark's job"}
PORT, SWITCH_PORT = 7070, 7071
START_SECONDS = 60.0
SERVER_MEMORY = "256MiB"


class Worker:
    """A worker's process on a host, which answers one line with one line, and its link."""

    def __init__(self, host: Host, settings: dict[str, Any], log: Path) -> None:
        self.host = host
        self.rank = settings["rank"]
        self._log = log
        with host.inside(), log.open("w") as errors:
            self._process = start_program(
                [sys.executable, str(PROGRAMS / "ours" / "network_train.py"), json.dumps(settings)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1,
                env=environment(1, KEY),
            )  # fmt: skip

    def send(self, method: str, **request: Any) -> None:
        """Asks for something; `receive` brings the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({method: request}) + "\n")
        self._process.stdin.flush()

    def receive(self, *, may_fail: bool = False) -> dict[str, Any]:
        """The next line. Raises BenchmarkError when the process has ended, or when it tells of an error."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._log.read_text()[-3000:]
            raise BenchmarkError(f"{self.host.name}: the worker ended with {self._process.wait()}:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer and not may_fail:
            raise BenchmarkError(f"{self.host.name}: {answer['error']}: {answer['message']}")
        return answer

    def finish(self, *, may_fail: bool = False) -> dict[str, Any]:
        """The answer to `train`, after the lines of its steps."""
        while "step" in (answer := self.receive(may_fail=may_fail)):
            pass
        return answer

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()


class Site:
    """Hosts for servers, a switch and workers, whose links have wires if asked for; use as a context manager.

    `settings` (shape, rows) are the workers', which start at once and stay; `others` name further hosts. With
    `bridge` the switch's host is the Ethernet switch that joins the others, and `in_kernel` tells whether an XDP
    program on its ports does the switching.
    """

    def __init__(
        self,
        folder: Path,
        workers: int,
        settings: dict[str, Any],
        *,
        servers: int = 1,
        wired: bool = True,
        bridge: bool = False,
        others: Sequence[str] = (),
    ) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._settings = settings
        self._started = 0
        self._ports: list[str] = []
        self.in_kernel = False
        self.sums_in_kernel = 0  # of the last run
        self.server_pids: list[int] = []  # of those that `sharing` runs
        try:
            self.network = self._stack.enter_context(Network())
            with ExitStack() as undo:
                undo.push(self._stack.__exit__)
                names = [f"w{rank}" for rank in range(workers)]
                named = ["server", *(f"server-{number}" for number in range(1, servers))]
                wires = names if wired else []
                if bridge:
                    self.switch, self._ports = bridge_host(self.network, [*named, *names], wired=wires)
                else:
                    self.network.star(*named, "switch", *names, *others, switch="ethernet", wired=wires)
                    self.switch = self.network["switch"]
                self.servers = [self.network[name] for name in named]
                self._hosts = [self.network[name] for name in names]
                self.server = self.servers[0]
                self.workers = [self._start_worker(rank) for rank in range(workers)]
                for worker in self.workers:
                    worker.receive()
                undo.pop_all()
        except NetworkUnavailableError as error:
            raise NotInstalledError(str(error)) from error
        except NetworkError as error:
            raise BenchmarkError(str(error)) from error

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(None, None, None)

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"luwu://{self.server.address}:{PORT}"

    def _start_worker(self, rank: int) -> Worker:
        self._started += 1
        log = self._folder / f"worker-{rank}-{self._started}.log"
        worker = Worker(self._hosts[rank], {**self._settings, "rank": rank}, log)
        self._stack.callback(worker.kill)
        return worker

    def replace_worker(self, rank: int) -> None:
        """A new process for a worker that was killed."""
        self.workers[rank] = self._start_worker(rank)
        self.workers[rank].receive()

    def start_server(self, store: Path, workers: int, form: str = "int32") -> Process:
        """`luwu server` over UDP, with a switch; returns once it listens."""
        return self._start_server(self.server, store, workers, transport="udp", switches=1, form=form)

    def _start_server(self, host: Host, store: Path, workers: int, **flags: Any) -> Process:
        common = {
            "store": store, "workers": workers, "memory": SERVER_MEMORY, "listen": f"{host.address}:{PORT}",
            "optimizer-threads": 1,
        }  # fmt: skip
        return self._start(host, "server", {**common, **flags})

    def start_switch(self, before: Sequence[str] = ()) -> Process:
        """Starts `luwu switch`; returns once it listens. `before`: a command that starts it."""
        flags = {"server": self.url, "listen": f"{self.switch.address}:{SWITCH_PORT}", "name": "one"}
        if self.in_kernel:
            flags["xdp"] = ",".join(self._ports)
        return self._start(self.switch, "switch", flags, before)

    def _start(self, host: Host, command: str, flags: dict[str, Any], before: Sequence[str] = ()) -> Process:
        arguments = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        process = host.popen([*before, sys.executable, "-m", "luwu.cli", command, *arguments], environment(1, KEY))
        wait_until(
            lambda: " serves " in process.output() or " listens " in process.output() or process.returncode is not None,
            f"luwu {command} to listen", START_SECONDS,
        )  # fmt: skip
        if process.returncode is not None:
            raise BenchmarkError(process.report())
        return process

    @contextmanager
    def serving(self, store: Path, workers: int, form: str = "int32") -> Iterator[None]:
        """A server and a switch; both are stopped at the end."""
        server, switch = self.start_server(store, workers, form), self.start_switch()
        try:
            yield
        except BenchmarkError as error:
            raise BenchmarkError(f"{error}\n{server.report()}\n{switch.report()}") from error
        finally:
            switch.stop()
            server.stop()
            self.sums_in_kernel = counted(switch, "sums_sent")

    @contextmanager
    def sharing(self, folder: Path, workers: int, servers: int, transport: str) -> Iterator[str]:
        """The first `servers`, without a switch, each with a store in the folder; the URL of them all."""
        hosts = self.servers[:servers]
        running = [
            self._start_server(host, folder / host.name, workers, transport=transport, switches=0) for host in hosts
        ]
        self.server_pids = [server.pid for server in running]
        try:
            yield "luwu://" + ",".join(f"{host.address}:{PORT}" for host in hosts)
        except BenchmarkError as error:
            raise BenchmarkError("\n".join([str(error), *(server.report() for server in running)])) from error
        finally:
            for server in running:
                server.stop()

    def join(self, where: str, workers: int, dtype: str = "float32") -> int:
        """Has the first `workers` join; the step that they stand at."""
        for worker in self.workers[:workers]:
            worker.send("join", where=where, workers=workers, dtype=dtype)
        return min(worker.receive()["step"] for worker in self.workers[:workers])

    def run_group(self, program: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
        """A sample of each process of a torch group, one in every worker's namespace."""
        with tempfile.TemporaryDirectory(prefix="luwu-bench-") as scratch, ExitStack() as stack:
            processes = []
            for rank, host in enumerate(self._hosts):
                variables = {
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(self._hosts)),
                    "LUWU_RENDEZVOUS": f"{scratch}/rendezvous", "GLOO_SOCKET_IFNAME": host.ends[0].interface,
                }  # fmt: skip
                with host.inside(), open(f"{scratch}/{rank}.log", "w") as errors:
                    processes.append(
                        start_program(
                            [sys.executable, str(PROGRAMS / program), json.dumps(settings)], text=True, stderr=errors,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(1, variables),
                        )
                    )  # fmt: skip
                stack.callback(processes[-1].communicate)
                stack.callback(processes[-1].kill)
            samples = []
            for word in ("", "sample\n"):
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write(word)
                    process.stdin.flush()
                lines = [process.stdout.readline() if process.stdout else "" for process in processes]
                if not all(lines):
                    raise BenchmarkError(f"{program} failed:\n{Path(scratch, '0.log').read_text()[-3000:]}")
                samples = [json.loads(line) for line in lines]
            return samples

    def ask(self, workers: int, method: str, **request: Any) -> list[dict[str, Any]]:
        """Asks the first `workers` all at once; their answers."""
        for worker in self.workers[:workers]:
            worker.send(method, **request)
        return [worker.receive() for worker in self.workers[:workers]]


def bytes_at(host: Host) -> int:
    """Return the bytes that a host's interface has received and sent."""
    counters = host.ends[0].counters()
    return counters.received_bytes + counters.sent_bytes


def bits_of(answers: list[dict[str, Any]]) -> list[list[str]]:
    """Each step's losses of all ranks, in hexadecimal."""
    return [list(step) for step in zip(*(answer["losses"] for answer in answers), strict=True)]


def means(bits: list[list[str]]) -> list[float]:
    """Each step's mean over ranks."""
    return [sum(float.fromhex(loss) for loss in step) / len(step) for step in bits]


def digest_of(store: Path) -> str:
    """SHA-256 of everything that a committed store holds: parameters and states of every block."""
    from harness import stored
    from luwu.store.opening import open_reader

    reader, manifest = open_reader([store])
    return stored.digest_of(reader, len(manifest.blocks), str(reader.step))
