"""Numbered datagrams from one host to another, for tests that count them."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager

from harness.network.nodes import Host


@contextmanager
def one_processor() -> Iterator[None]:
    """Frames sent from two processors may overtake each other; what is counted by number must not."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def numbered(count: int, size: int = 100) -> list[bytes]:
    """Payloads that begin with their number, from 1 on."""
    return [number.to_bytes(4, "big").ljust(size, b"\xa5") for number in range(1, count + 1)]


def numbers(payloads: list[bytes]) -> list[int]:
    """Return the numbers that `numbered` put into them."""
    return [int.from_bytes(payload[:4], "big") for payload in payloads]


class Stream:
    """Datagrams from one host to another, and what came of them."""

    def __init__(self, sender: Host, receiver: Host, version: int = 4) -> None:
        self.sender, self.receiver = sender, receiver
        self.sending, self.receiving = sender.udp(version=version), receiver.udp(version=version)
        self.sending.sendto(b"hello", self.receiving.getsockname())  # addresses are resolved before anything counts
        self.receiving.recv(100)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.sending.close()
        self.receiving.close()

    def send(self, payloads: list[bytes]) -> None:
        """Send them in order."""
        with one_processor():
            for payload in payloads:
                self.sending.sendto(payload, self.receiving.getsockname())

    def receive(self, count: int) -> list[bytes]:
        """Return exactly ``count`` datagrams."""
        received = [self.receiving.recv(65536) for _ in range(count)]
        assert self.is_quiet()
        return received

    def is_quiet(self) -> bool:
        """Return True if nothing waits at the receiver, once a last datagram of another stream has passed."""
        with Stream(self.sender, self.receiver):
            return not select.select([self.receiving], [], [], 0)[0]
