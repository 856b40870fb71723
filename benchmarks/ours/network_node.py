"""A participant of the network fabric without a store, commanded line by line: aggregator, switch or worker.

Settings: {"role": ..., "address": ...}. It answers each request, one JSON object a line, with one line:
{"start": {...}}, {"stats": {}}, and workers {"exchange": {"push": bool, "pull": bool, "rounds": n}} and {"digest": {}}.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from kit.child import settings, take_stdout

from luwu import _native, _native_testing

Request = dict[str, Any]
LONGEST_EXCHANGE_SECONDS = 60


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError when the block takes longer: native waits look for signals."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def make_wiring(request: Request) -> _native.Wiring:
    """The job's agreement, as the benchmark spells it out."""
    values = dict(request)
    timing = _native.NetworkTiming(values.pop("timing"))
    blocks = values.pop("blocks")
    return _native_testing.with_blocks(_native.Wiring(**values, timing=timing), blocks)


def cpu_seconds() -> float:
    """Processor time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Worker:
    """Pushes and pulls every block, as many rounds as asked, as far ahead as two rounds."""

    def __init__(self, address: str) -> None:
        self.node = _native_testing.WaitingPort(address, 0)
        self._blocks: list[int] = []

    def start(self, request: Request) -> None:
        """Joins the tree."""
        self._blocks = request["wiring"]["blocks"]
        child = request["child"]
        group = tuple(request["group"]) if request.get("group") else None
        self.node.start(make_wiring(request["wiring"]), tuple(request["parent"]), child, group)
        random = np.random.default_rng(child)
        self._gradients = [random.standard_normal(count, dtype=np.float32) for count in self._blocks]
        self._values = [np.zeros(count, np.float32) for count in self._blocks]

    def exchange(self, push: bool, pull: bool, rounds: int) -> Request:
        """Seconds that it took, and when it began and ended by the machine's clock."""
        try:
            with time_limit(LONGEST_EXCHANGE_SECONDS):
                return self._exchange(push, pull, rounds)
        except TimeoutError as error:
            return {"error": str(error)}

    def _exchange(self, push: bool, pull: bool, rounds: int) -> Request:
        before, cpu = time.monotonic(), cpu_seconds()
        tickets: list[int] = []
        ahead = 2 * len(self._blocks)
        for number in range(rounds * len(self._blocks)):
            block = number % len(self._blocks)
            if push:
                tickets.append(self.node.push(block, self._gradients[block]))
            if pull:
                tickets.append(self.node.pull(block, self._values[block]))
            while len(tickets) > ahead:
                self.node.wait(tickets.pop(0))
        for ticket in tickets:
            self.node.wait(ticket)
        after = time.monotonic()
        return {"seconds": after - before, "began": before, "ended": after, "cpu_seconds": cpu_seconds() - cpu}

    def digest(self) -> Request:
        """Return the digest of the values that were pulled last."""
        found = hashlib.sha256()
        for values in self._values:
            found.update(values)
        return {"digest": found.hexdigest()}


def main() -> None:
    """Serves requests until standard input ends."""
    replies = take_stdout()
    role, address = settings()["role"], settings()["address"]
    worker = Worker(address) if role == "worker" else None
    kinds = {"aggregator": _native_testing.UdpAggregator, "switch": _native.UdpSwitch}
    interfaces = settings().get("interfaces")  # of a switch inside the kernel
    more = [interfaces] if interfaces else []
    node: Any = worker.node if worker else kinds[role](address, 0, *more)
    replies.write(json.dumps({"port": node.port}) + "\n")
    for line in sys.stdin:
        ((name, request),) = json.loads(line).items()
        reply: Request = {}
        if name == "exchange" and worker:
            reply = worker.exchange(**request)
        elif name == "digest" and worker:
            reply = worker.digest()
        elif name == "stats":
            reply = {**node.stats(), "cpu_seconds": cpu_seconds()}
        elif worker:
            worker.start(request)
        elif role == "switch":
            children = [tuple(child) for child in request["children"]]
            node.start(make_wiring(request["wiring"]), tuple(request["parent"]), request["child"], children)
        else:
            group = tuple(request["group"]) if request.get("group") else None
            node.start(make_wiring(request["wiring"]), tuple(request["child"]), group, request["echo"])
        replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
