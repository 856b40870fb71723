"""Links: a cable between two nodes, with its speed, its faults and its counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.network.errors import NetworkError
from harness.network.namespaces import wait_until
from harness.network.nodes import End, Node, Switch
from harness.network.programs import built
from harness.network.wire import Rule, Wire

REORDER_LONGEST_SECONDS = 0.05  # what is held back for others goes then at the latest: maybe nothing follows


@dataclass(frozen=True)
class Cable:
    """An interface inside the link, which no host owns: the place where the link is cut."""

    node: Node
    interface: str


class Link:
    """Joins two ends; `a` and `b` in the order in which they were named."""

    def __init__(self, a: End, b: End, mtu_bytes: int, cables: Sequence[Cable], wire: Wire | None) -> None:
        self.a = a
        self.b = b
        self.mtu_bytes = mtu_bytes
        self.wire = wire
        self._cables = cables

    def __repr__(self) -> str:
        return f"Link({self.a.node.name!r}, {self.b.node.name!r})"

    def end(self, node: str) -> End:
        """The end at a node, by name."""
        for end in (self.a, self.b):
            if end.node.name == node:
                return end
        raise NetworkError(f"{self} has no end at {node}")

    def limit(
        self,
        rate_bits: float,
        burst_bytes: int | None = None,
        latency_seconds: float = 0.01,
        towards: str | None = None,
    ) -> None:
        """Let no more pass than `rate_bits` a second; what would wait longer than the latency is dropped.

        Args:
            rate_bits: bits a second.
            burst_bytes: what may pass at once; by default a millisecond's worth, and eight frames at least.
            latency_seconds: the longest wait in the queue.
            towards: the node, by name; both directions without it.
        """
        burst = burst_bytes or max(8 * (self.mtu_bytes + 14), int(rate_bits / 8 / 1000))
        for end in self._senders(towards):
            settings = f"rate {int(rate_bits)}bit burst {burst} latency {max(1, int(latency_seconds * 1e6))}us"
            end.node.tc(f"qdisc replace dev {end.interface} root tbf {settings}")

    def mark(self, rate_bits: float) -> None:
        """Mark frames that come while more than 64 wait, as a queue with ECN does, before a `limit` of the same rate.

        Args:
            rate_bits: bits a second: 100e6, 500e6 or 1e9, of full Ethernet frames.

        Raises:
            NetworkUnavailableError: the program was not built.
        """
        marks = built("marks.bpf.o")
        self.unmark()
        for end in (self.a, self.b):
            end.node.tc(f"qdisc add dev {end.interface} clsact")
            program = f"direct-action object-file {marks} section tc_{round(rate_bits / 1e6)}"
            end.node.tc(f"filter add dev {end.interface} egress bpf {program}")

    def unmark(self) -> None:
        """Mark no more frames."""
        for end in (self.a, self.b):
            if "clsact" in self.queue(end.node.name):
                end.node.tc(f"qdisc delete dev {end.interface} clsact")

    def unlimit(self) -> None:
        """Take the limits away."""
        for end in (self.a, self.b):
            if "tbf" in self.queue(end.node.name):
                end.node.tc(f"qdisc delete dev {end.interface} root")

    def queue(self, node: str) -> str:
        """Return the report of `tc` on the queue at a node's end, with its counters."""
        end = self.end(node)
        return end.node.tc(f"-s qdisc show dev {end.interface}")

    def cut(self) -> None:
        """Pull the cable: hosts see no carrier, and keep addresses and routes."""
        for cable in self._cables:
            cable.node.ip(f"link set dev {cable.interface} down")
        wait_until(lambda: not self.a.is_running() and not self.b.is_running(), f"{self}: the end of the carrier")

    def mend(self) -> None:
        """Plug the cable in again, and wait until both sides have noticed."""
        for cable in self._cables:
            cable.node.ip(f"link set dev {cable.interface} up")
        self.wait()

    def wait(self) -> None:
        """Wait until frames can pass."""
        wait_until(lambda: self.a.is_running() and self.b.is_running(), f"{self}: a carrier")
        for end in (self.a, self.b):
            if isinstance(end.node, Switch):
                wait_until(partial(end.node.forwards, end.interface), f"{end.node}: an open port")

    def harm(
        self,
        *rules: Rule,
        seed: int = 0,
        towards: str | None = None,
        loss: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        reorder_frames: int = 3,
        corrupt: float = 0.0,
        corrupt_and_fix: float = 0.0,
        delay_seconds: float = 0.0,
        port: int = 0,
    ) -> None:
        """Replace what harms UDP datagrams on this link; without arguments, nothing does.

        The same seed and the same order of frames harm the same frames. Numbers are drawn for each direction apart.

        Args:
            rules: come before what the other arguments ask for.
            seed: of the random numbers.
            towards: the node, by name; both directions without it.
            loss: probability that a frame is dropped.
            duplicate: probability that a frame comes twice.
            reorder: probability that a frame lets `reorder_frames` others go first.
            reorder_frames: see there.
            corrupt: probability of a flipped bit that the UDP checksum catches.
            corrupt_and_fix: probability of a flipped bit that it does not catch.
            delay_seconds: how long every frame takes.
            port: harm only frames from or to this UDP port (rules name their own).
        """
        if self.wire is None:
            raise NetworkError(f"{self} has no wire: make it with wired=True")
        asked = [
            (loss, Rule("drop", loss, port=port)),
            (duplicate, Rule("duplicate", duplicate, port=port)),
            (corrupt, Rule("corrupt", corrupt, port=port)),
            (corrupt_and_fix, Rule("corrupt_and_fix", corrupt_and_fix, port=port)),
            (delay_seconds, Rule("hold", hold_seconds=delay_seconds, port=port)),
            (
                reorder,
                Rule(
                    "hold", reorder, port=port, hold_frames=reorder_frames,
                    hold_seconds=delay_seconds + REORDER_LONGEST_SECONDS,
                ),
            ),
        ]  # fmt: skip
        everything = [*rules, *(rule for wanted, rule in asked if wanted)]
        for number, end in enumerate((self.a, self.b)):
            if towards in (None, end.node.name):
                self.wire.harm(_direction(number), everything, 2 * seed + number)

    def counts(self, towards: str) -> dict[str, Any]:
        """Return the wire's counts of frames towards a node: frames, dropped, duplicated, held, corrupted, rules..."""
        if self.wire is None:
            raise NetworkError(f"{self} has no wire: make it with wired=True")
        counts: dict[str, Any] = self.wire.counts()[_direction(0 if self.end(towards) is self.a else 1)]
        return counts

    def _senders(self, towards: str | None) -> list[End]:
        if towards is None:
            return [self.a, self.b]
        return [self.b if self.end(towards) is self.a else self.a]


def _direction(number_of_receiver: int) -> str:
    return ("b_to_a", "a_to_b")[number_of_receiver]
