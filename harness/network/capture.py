"""A sniffer that needs no program: the UDP datagrams that pass an interface, with the bytes that were on the wire."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from harness.network.errors import NetworkError

ETH_P_ALL = 3
SO_ATTACH_FILTER = 26
SO_RCVBUFFORCE = 33
SOL_PACKET = 263
PACKET_STATISTICS = 6
BUFFER_BYTES = 64 << 20
FRAME_BYTES = 1 << 16
ETHERNET_BYTES = 14
IPV4, IPV6, UDP = 0x0800, 0x86DD, 17

# Classic BPF: UDP over IPv4, or over IPv6 without extension headers; nothing else costs room in the buffer.
UDP_ONLY = (
    (0x28, 0, 0, 12),  # half word: the type
    (0x15, 0, 2, IPV4),
    (0x30, 0, 0, 23),  # byte: the protocol
    (0x15, 3, 4, UDP),
    (0x15, 0, 3, IPV6),
    (0x30, 0, 0, 20),
    (0x15, 0, 1, UDP),
    (0x06, 0, 0, FRAME_BYTES),
    (0x06, 0, 0, 0),
)


@dataclass(frozen=True)
class Datagram:
    """A UDP datagram as it passed; `frame` has everything from the Ethernet header on."""

    time_seconds: float  # when it was read, of time.monotonic
    outgoing: bool
    source: tuple[str, int]
    destination: tuple[str, int]
    payload: bytes
    frame: bytes


class Capture:
    """Records from its making on; the fragments of a datagram that is too large are left out, and counted."""

    def __init__(self, interface: str, port: int | None = None) -> None:
        self.datagrams: list[Datagram] = []
        self.fragments = 0
        self._port = port
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        program = b"".join(struct.pack("HBBI", *step) for step in UDP_ONLY)
        steps = ctypes.create_string_buffer(program)
        self._socket.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(UDP_ONLY), ctypes.addressof(steps))
        )
        self._socket.bind((interface, ETH_P_ALL))

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._read_what_is_there()
        self._socket.close()

    def wait(self, enough: int | Callable[[list[Datagram]], bool], timeout_seconds: float = 60.0) -> list[Datagram]:
        """Wait for that many datagrams, or until they satisfy a condition; returns all so far.

        Raises:
            NetworkError: not in time; says how many came.
        """
        satisfied = (lambda seen: len(seen) >= enough) if isinstance(enough, int) else enough
        deadline = time.monotonic() + timeout_seconds
        self._read_what_is_there()
        while not satisfied(self.datagrams):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise NetworkError(f"captured only {len(self.datagrams)} datagrams within {timeout_seconds} s")
            select.select([self._socket], [], [], remaining)
            self._read_what_is_there()
        return self.datagrams

    def missed(self) -> int:
        """Return the frames that found the buffer full since the last call."""
        _, dropped = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        return int(dropped)

    def _read_what_is_there(self) -> None:
        while True:
            try:
                frame, address = self._socket.recvfrom(FRAME_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENETDOWN:  # the link was cut
                    continue
                raise
            self._add(frame, outgoing=address[2] == socket.PACKET_OUTGOING)

    def _add(self, frame: bytes, outgoing: bool) -> None:
        ip = frame[ETHERNET_BYTES:]
        if ip[0] >> 4 == 4:
            if struct.unpack_from(">H", ip, 6)[0] & 0x3FFF:
                self.fragments += 1
                return
            addresses, udp = (ip[12:16], ip[16:20]), ip[4 * (ip[0] & 15) :]
        else:
            addresses, udp = (ip[8:24], ip[24:40]), ip[40:]
        source_port, destination_port, length = struct.unpack_from(">HHH", udp)
        if self._port not in (None, source_port, destination_port):
            return
        source, destination = (str(ipaddress.ip_address(address)) for address in addresses)
        self.datagrams.append(
            Datagram(
                time.monotonic(), outgoing, (source, source_port), (destination, destination_port), udp[8:length], frame
            )
        )
