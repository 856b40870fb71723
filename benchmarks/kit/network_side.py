"""Our side of the network benchmarks: hosts in namespaces around one Ethernet switch, a participant in each."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from harness.network import Host, Network, NetworkUnavailableError
from harness.warm import start_program
from kit.common import PROGRAMS, BenchmarkError, NotInstalledError
from kit.processes import environment
from luwu.control.timeouts import TIMEOUTS
from luwu.control.wiring import timings_of

JOB, KEY = 7, 11
WINDOW_BYTES = 6 << 20  # parameters, and gradients, under way at most; as a server has it (luwu.server.tree)
REQUEST_WINDOW, EXPONENT_WINDOW = 64, 256
TIMING = timings_of(TIMEOUTS)
HEARTBEAT_BYTES = 216  # that reports no holes
FRAME_BYTES = 14  # around a packet
QUEUE_SECONDS = 0.05  # of a limited link; 1.25 MB at 200 Mb/s, a part of what a rack switch buffers for a port


class Hosts:
    """A server's host, a switch's and N workers' around one Ethernet switch; use as a context manager."""

    def __init__(self, workers: int, *, mtu: int = 1500, wired: bool = False) -> None:
        self._stack = ExitStack()
        self.mtu = mtu
        try:
            network = self._stack.enter_context(Network(mtu_bytes=mtu, offloads=not wired))
        except NetworkUnavailableError as error:
            raise NotInstalledError(str(error)) from error
        names = [f"w{rank}" for rank in range(workers)]
        with ExitStack() as undo:
            undo.push(self._stack.__exit__)
            everyone = network.star("server", "switch", *names, switch="ethernet", wired=names if wired else False)
            self.server, self.switch, *self.workers = everyone
            undo.pop_all()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(None, None, None)

    def limit(self, rate_bits: float, frames: int | None = None) -> None:
        """No more than this many bits a second each way, but at the switch: a real one has a port for each host.

        `frames`: the full frames that find room in a link's queue, by default those of `QUEUE_SECONDS`.
        """
        seconds = QUEUE_SECONDS if frames is None else 8 * frames * (self.mtu + FRAME_BYTES) / rate_bits
        for host in (self.server, *self.workers):
            host.link.limit(rate_bits, latency_seconds=seconds)

    def mark(self, rate_bits: float) -> None:
        """The queues of links that are limited to this rate mark frames that come while more than 64 wait."""
        for host in (self.server, *self.workers):
            host.link.mark(rate_bits)

    def unmark(self) -> None:
        """The queues mark no more."""
        for host in (self.server, *self.workers):
            host.link.unmark()

    def unlimit(self) -> None:
        """Takes the limits away."""
        for host in (self.server, *self.workers):
            host.link.unlimit()

    def harm(self, loss: float, seed: int) -> None:
        """Loses this share of the datagrams on every worker's link, each way."""
        for rank, worker in enumerate(self.workers):
            worker.link.harm(loss=loss, seed=seed + rank)

    def overflows(self) -> int:
        """Datagrams so far that found a receive buffer full, on all hosts."""
        return sum(host.udp_counters()["RcvbufErrors"] for host in (self.server, self.switch, *self.workers))

    def tcp_bytes_per_second(self, seconds: float = 1.0) -> float:
        """Return the bytes per second of a TCP stream from the server's host to a worker's: the machine's limit."""
        with self.workers[0].inside():
            listener = socket.create_server((self.workers[0].address, 0))
        with self.server.inside():
            sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        piece, into = bytes(1 << 20), bytearray(1 << 20)

        def send() -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sender.sendall(piece)
            sender.close()

        thread = threading.Thread(target=send)
        with listener, receiver:
            began, received = time.monotonic(), 0
            thread.start()
            while count := receiver.recv_into(into):
                received += count
            ended = time.monotonic()
        thread.join()
        return received / (ended - began)


class Participant:
    """A process in a host's namespace that answers one line with one line."""

    def __init__(self, host: Host, role: str, **more: Any) -> None:
        self.host = host
        settings = json.dumps({"role": role, "address": host.address, **more})
        with host.inside():
            self._process = start_program(
                [sys.executable, str(PROGRAMS / "ours" / "network_node.py"), settings],
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
    """A server, a switch and a worker on each of the workers' hosts; use as a context manager.

    `blocks` has each block's number of fp32 elements. With `echo` every pull waits for the push before it and brings
    the mean of all workers' pushes; without, pushes and pulls stand alone. `interfaces`: of a switch inside the kernel.
    """

    def __init__(
        self, hosts: Hosts, blocks: list[int], *, echo: bool, form: str = "int32", interfaces: list[str] | None = None
    ) -> None:
        self._stack = ExitStack()
        self._hosts, self.blocks = hosts, blocks
        self.bytes = 4 * sum(blocks)
        roles = [("aggregator", hosts.server), ("switch", hosts.switch), *(("worker", host) for host in hosts.workers)]
        with ExitStack() as undo:
            undo.push(self._stack.__exit__)
            of_switch = {"interfaces": interfaces} if interfaces else {}
            everyone = [Participant(host, role, **(of_switch if role == "switch" else {})) for role, host in roles]
            for participant in everyone:
                self._stack.callback(participant.close)
            for participant in everyone:
                participant.wait_ready()
            self.server, self.switch, *self.workers = everyone
            payload = (hosts.mtu - 28 - 48) // 128 * 128
            packets = max(256, WINDOW_BYTES // payload)
            wiring = {
                "job": JOB, "key": KEY, "epoch": 1, "workers": len(self.workers), "payload_bytes": payload,
                "form": form, "windows": (packets, REQUEST_WINDOW, EXPONENT_WINDOW, packets), "timing": TIMING,
                "blocks": blocks,
            }  # fmt: skip
            self._start(wiring, echo)
            undo.pop_all()

    def _start(self, wiring: dict[str, Any], echo: bool) -> None:
        places = [worker.place for worker in self.workers]
        for rank, worker in enumerate(self.workers):
            worker.ask(start={"wiring": wiring, "parent": self.switch.place, "child": rank})
        self.switch.ask(start={"wiring": wiring, "parent": self.server.place, "child": 0, "children": places})
        self.server.ask(start={"wiring": wiring, "child": self.switch.place, "echo": echo})

    def __enter__(self) -> NetworkSide:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(None, None, None)

    def exchange(self, *, push: bool, pull: bool, rounds: int = 1) -> float:
        """Seconds in which every worker pushes and pulls every block: from the first one's beginning to the last's end.

        Raises BenchmarkError when it takes longer than a minute.
        """
        for worker in self.workers:
            worker.send(exchange={"push": push, "pull": pull, "rounds": rounds})
        answers = [worker.receive() for worker in self.workers]
        if any("error" in answer for answer in answers):
            raise BenchmarkError(f"an exchange did not end: {answers} {self.stats()}")
        return max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)

    def goodput(self, *, push: bool, pull: bool, rounds: int = 1) -> float:
        """Bytes of fp32 values that a worker moves in a second, both directions together."""
        return (push + pull) * rounds * self.bytes / self.exchange(push=push, pull=pull, rounds=rounds)

    def digests(self) -> set[str]:
        """Return digests of all pulled values, one of each worker: the same everywhere if all is well."""
        return {worker.ask(digest={})["digest"] for worker in self.workers}

    def stats(self) -> dict[str, Any]:
        """Counts of every participant, by host."""
        everyone = [self.server, self.switch, *self.workers]
        return {participant.host.name: participant.ask(stats={}) for participant in everyone}

    def server_counts(self) -> dict[str, int]:
        """Return the server's counts of packets, heartbeats apart, and those of its interface."""
        counts = self.server.ask(stats={})
        seen = self._hosts.server.ends[0].counters()
        heartbeats = counts["heartbeats_in"] + counts["heartbeats_out"]
        return {
            "packets": counts["packets_in"] + counts["socket"]["datagrams_sent"] - heartbeats,
            "bytes": counts["bytes_in"] + counts["bytes_out"] - HEARTBEAT_BYTES * heartbeats,
            "heartbeats": heartbeats,
            "resent": counts["resent"],
            "interface_bytes": seen.received_bytes + seen.sent_bytes,
        }


def difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return the counts between two times."""
    return {name: after[name] - before[name] for name in after}


def lost(stats: Mapping[str, Any]) -> dict[str, int]:
    """Return the sum of all participants' counts that tell of trouble."""
    total = {"resent": 0, "sums_sent_again": 0}
    for found in stats.values():
        for name in total:
            total[name] += found.get(name, 0)
        trouble = {**found["drops"], **{name: found["socket"][name] for name in ("dropped_full", "dropped_refused")}}
        for name, count in trouble.items():
            if count:
                total[name] = total.get(name, 0) + count
    return total
