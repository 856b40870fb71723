"""Nodes that links join: hosts, which run processes, and switches."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.network import devices
from harness.network.capture import Capture
from harness.network.errors import NetworkError
from harness.network.namespaces import command, entered
from harness.network.processes import Process

if TYPE_CHECKING:
    from harness.network.links import Link


SO_RCVBUFFORCE = 33
RECEIVE_BUFFER_BYTES = 16 << 20


class Node:
    """A network namespace with a name."""

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace
        self.links: list[Link] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def link(self) -> Link:
        """Its only link."""
        (link,) = self.links
        return link

    def inside(self) -> AbstractContextManager[None]:
        """Move this thread in; sockets and processes made meanwhile stay there. /sys still shows the machine's."""
        return entered(self.namespace)

    def ip(self, *lines: str) -> None:
        """Run commands of `ip`, without the word itself."""
        if lines:
            command("ip", "-n", self.namespace, "-batch", "-", lines=lines)

    def thread(self, interface: str) -> None:
        """Let a kernel thread do the work on what an interface receives, named "napi/INTERFACE-NUMBER"."""
        line = f"echo 1 > /sys/class/net/{interface}/threaded"
        command("ip", "netns", "exec", self.namespace, "sh", "-c", line)

    def tc(self, line: str) -> str:
        """Run one command of `tc`, without the word itself; returns what it prints."""
        return command("tc", "-n", self.namespace, *line.split())


@dataclass(frozen=True)
class End:
    """Interface of a node at one end of a link; only a host has addresses."""

    node: Node
    interface: str
    address: str | None = None
    address_6: str | None = None

    def counters(self) -> devices.Counters:
        """Bytes and frames that passed here, as the node sees it."""
        with self.node.inside():
            return devices.counters(self.interface)

    def is_running(self) -> bool:
        """Return True if the interface is up and its cable is plugged in."""
        with self.node.inside():
            return devices.is_running(self.interface)

    def offloads(self) -> set[str]:
        """The offloads that are on."""
        with self.node.inside():
            return devices.offloads(self.interface)


class Host(Node):
    """A node with addresses, where processes run."""

    def __init__(self, name: str, namespace: str, folder: Path) -> None:
        super().__init__(name, namespace)
        self.ends: list[End] = []
        self.processes: list[Process] = []
        self._folder = folder

    @property
    def address(self) -> str:
        """Its first IPv4 address."""
        return next(end.address for end in self.ends if end.address)

    @property
    def address_6(self) -> str:
        """Its first IPv6 address."""
        return next(end.address_6 for end in self.ends if end.address_6)

    def popen(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, own_sys: bool = False
    ) -> Process:
        """Start a process, which ends with the network at the latest.

        Args:
            arguments: the program and its arguments.
            environment: added to this process's.
            own_sys: mount a /sys that shows this host's interfaces (and no control groups).
        """
        if own_sys:
            arguments = [shutil.which("ip") or "ip", "netns", "exec", self.namespace, *arguments]
        log = self._folder / f"{self.name}-{len(self.processes)}.log"
        with self.inside():
            process = Process(f"{self.name}#{len(self.processes)}", arguments, log, environment)
        self.processes.append(process)
        return process

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None, timeout_seconds: float = 90.0
    ) -> str:
        """Run a process to its end; returns its output.

        Raises:
            NetworkError: it failed or took too long; the text has its output.
        """
        process = self.popen(arguments, environment)
        try:
            if process.wait(timeout_seconds) != 0:
                raise NetworkError(process.report())
        finally:
            process.stop()
        return process.output()

    def udp(self, port: int = 0, timeout_seconds: float = 60.0, version: int = 4) -> socket.socket:
        """Open a UDP socket of this host in this process, on a port of the kernel's choice."""
        with self.inside():
            udp = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        udp.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        udp.bind((self.address if version == 4 else self.address_6, port))
        udp.settimeout(timeout_seconds)
        return udp

    def udp_counters(self) -> dict[str, int]:
        """Return the kernel's counters of UDP over IPv4: InDatagrams, InCsumErrors, RcvbufErrors..."""
        with self.inside():
            return devices.protocol_counters("Udp")

    def capture(self, interface: str | None = None, port: int | None = None) -> Capture:
        """Record the UDP datagrams that pass an interface (the first one), both ways."""
        with self.inside():
            return Capture(interface or self.ends[0].interface, port)


class Switch(Node):
    """An Ethernet bridge. Its hosts have addresses 10.77.SEGMENT.x."""

    def __init__(self, name: str, namespace: str, segment: int) -> None:
        super().__init__(name, namespace)
        self.segment = segment

    def forwards(self, port: str) -> bool:
        """Return True if the bridge has opened a port."""
        return "state forwarding" in command("ip", "-n", self.namespace, "-d", "link", "show", "dev", port)
