"""Our side of the network benchmarks: hosts in namespaces around one Ethernet switch, a participant in each."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from common import ROOT, BenchmarkError
from processes import environment

sys.path.insert(0, str(ROOT))
from tests.network import Host, Network, NetworkUnavailableError

HERE = Path(__file__).resolve().parent
JOB, KEY = 7, 11
WINDOWS = (4096, 64, 256, 4096)  # packets under way: parameters, requests, exponents, gradients
TIMING = {
    "heartbeat_seconds": 0.0005,
    "idle_heartbeat_seconds": 0.05,
    "resend_seconds": 0.05,
    "longest_resend_seconds": 1.0,
    "queueing_seconds": 0.005,
}


class Participant:
    """A process in a host's namespace that answers one line with one line."""

    def __init__(self, host: Host, role: str) -> None:
        self.host = host
        settings = json.dumps({"role": role, "address": host.address})
        with host.inside():
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "ours" / "network_node.py"), settings],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(1),
            )  # fmt: skip
        self.port = 0

    @property
    def place(self) -> tuple[str, int]:
        """Address and port of its data plane."""
        return self.host.address, self.port

    def wait_ready(self) -> None:
        """Waits for the process and learns its port."""
        self.port = self.receive()["port"]

    def send(self, **request: Any) -> None:
        """Asks for something; `receive` brings the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next answer. Raises BenchmarkError when the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError(f"{self.host.name}: the participant ended with {self._process.wait()}")
        return json.loads(line)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends and receives."""
        self.send(**request)
        return self.receive()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class NetworkSide:
    """A server, a switch and N workers, each on a host of its own; use as a context manager."""

    def __init__(
        self,
        workers: int,
        blocks: list[int],
        *,
        echo: bool,
        form: str = "int32",
        mtu: int = 1500,
        payload: int | None = None,
        offloads: bool = True,
        wired: bool = False,
        rate_bits: float | None = None,
        group: tuple[str, int] | None = None,
    ) -> None:
        self._stack = ExitStack()
        try:
            self.network = self._stack.enter_context(Network(mtu_bytes=mtu, offloads=offloads))
        except NetworkUnavailableError as error:
            raise BenchmarkError(str(error)) from error
        with ExitStack() as undo:
            undo.push(self._stack.__exit__)
            names = ["server", "switch", *(f"w{rank}" for rank in range(workers))]
            hosts = self.network.star(*names, switch="ethernet", wired=wired)
            for host in hosts:
                if rate_bits is not None:
                    host.link.limit(rate_bits, latency_seconds=0.02)
            roles = ["aggregator", "switch", *(["worker"] * workers)]
            everyone = [Participant(host, role) for host, role in zip(hosts, roles, strict=True)]
            for participant in everyone:
                self._stack.callback(participant.close)
            for participant in everyone:
                participant.wait_ready()
            self.server, self.switch, *self.workers = everyone
            self.payload = payload or (mtu - 28 - 48) // 128 * 128
            wiring = {
                "job": JOB, "key": KEY, "epoch": 1, "workers": workers, "payload_bytes": self.payload, "form": form,
                "windows": WINDOWS, "timing": TIMING, "blocks": blocks,
            }  # fmt: skip
            self._start(wiring, echo, group)
            undo.pop_all()

    def _start(self, wiring: dict[str, Any], echo: bool, group: tuple[str, int] | None) -> None:
        places = [worker.place for worker in self.workers]
        for rank, worker in enumerate(self.workers):
            worker.ask(start={"wiring": wiring, "parent": self.switch.place, "child": rank, "group": group})
        parent = self.server.place
        self.switch.ask(start={"wiring": wiring, "parent": parent, "child": 0, "children": places})
        self.server.ask(start={"wiring": wiring, "child": self.switch.place, "group": group, "echo": echo})

    def __enter__(self) -> NetworkSide:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(None, None, None)

    def exchange(self, *, push: bool, pull: bool, rounds: int) -> float:
        """Seconds from the first worker's beginning to the last one's end."""
        for worker in self.workers:
            worker.send(exchange={"push": push, "pull": pull, "rounds": rounds})
        answers = [worker.receive() for worker in self.workers]
        return max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)

    def stats(self) -> dict[str, Any]:
        """Counts of every participant."""
        return {participant.host.name: participant.ask(stats={}) for participant in self._everyone()}

    def _everyone(self) -> list[Participant]:
        return [self.server, self.switch, *self.workers]
