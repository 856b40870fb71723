"""Reports of the kernel on an interface, and its offloads: in the namespace that this thread is in."""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

SIOCGIFFLAGS = 0x8913
SIOCETHTOOL = 0x8946
IFF_RUNNING = 0x40
ETHTOOL_GSTRINGS = 0x1B
ETHTOOL_SGRO = 0x2C
ETHTOOL_GSSET_INFO = 0x37
ETHTOOL_GFEATURES = 0x3A
ETHTOOL_SFEATURES = 0x3B
ETH_SS_FEATURES = 4
STRING_BYTES = 32
# Whatever lets a frame be larger than the link's MTU, or go without a checksum.
OFFLOADS = re.compile(r"tx-.*segmentation|tx-checksum-.*|tx-gso-.*|tx-udp_tnl-.*|rx-gro.*|rx-lro|tx-esp-.*")


@dataclass(frozen=True)
class Counters:
    """Counters of an interface, since it was made, as the kernel of its own side counts."""

    received_bytes: int
    received_frames: int
    received_dropped: int
    sent_bytes: int
    sent_frames: int
    sent_dropped: int


def counters(interface: str) -> Counters:
    """Read an interface's counters."""
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    fields = next(line.split(":")[1].split() for line in lines if line.split(":")[0].strip() == interface)
    numbers = [int(fields[index]) for index in (0, 1, 3, 8, 9, 11)]
    return Counters(*numbers)


def protocol_counters(protocol: str = "Udp") -> dict[str, int]:
    """Read what the kernel counts for a protocol over IPv4, such as InCsumErrors of "Udp"."""
    lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    names, values = (line.split()[1:] for line in lines if line.startswith(f"{protocol}:"))
    return dict(zip(names, map(int, values), strict=True))


def is_running(interface: str) -> bool:
    """Return True if the interface is up and its cable is plugged in."""
    with _control() as control:
        reply = fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16s16x8x", interface.encode()))
    return bool(struct.unpack_from("16xH", reply)[0] & IFF_RUNNING)


def offloads(interface: str) -> set[str]:
    """The offloads that are on, by the names that `ethtool -k` gives them."""
    names = _feature_names(interface)
    request = array.array("I", [ETHTOOL_GFEATURES, _blocks(names)] + [0] * (4 * _blocks(names)))
    _ethtool(interface, request)
    active = [request[2 + 4 * block + 2] for block in range(_blocks(names))]  # available, requested, active, fixed
    on = {name for index, name in enumerate(names) if active[index // 32] >> index % 32 & 1}
    return {name for name in on if OFFLOADS.fullmatch(name)}


def disable_offloads(interface: str) -> None:
    """Make the kernel cut frames to the MTU and compute checksums before the interface sees them."""
    names = _feature_names(interface)
    request = array.array("I", [ETHTOOL_SFEATURES, _blocks(names)] + [0] * (2 * _blocks(names)))
    for index, name in enumerate(names):
        if OFFLOADS.fullmatch(name):
            request[2 + 2 * (index // 32)] |= 1 << index % 32  # valid; the value requested stays 0
    _ethtool(interface, request)


def enable_gro(interface: str) -> None:
    """Make a veth receive through NAPI: its other end can then take frames that XDP redirects."""
    _ethtool(interface, array.array("I", [ETHTOOL_SGRO, 1]))


def _control() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _blocks(names: list[str]) -> int:
    return (len(names) + 31) // 32


def _ethtool(interface: str, request: array.array[int]) -> None:
    address, _ = request.buffer_info()
    with _control() as control:
        fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), address))


def _feature_names(interface: str) -> list[str]:
    count = array.array("I", [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0])
    _ethtool(interface, count)
    request = array.array("I", [ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count[4]] + [0] * (count[4] * STRING_BYTES // 4))
    _ethtool(interface, request)
    text = request.tobytes()[12:]
    strings = [text[place : place + STRING_BYTES] for place in range(0, len(text), STRING_BYTES)]
    return [string.split(b"\0")[0].decode() for string in strings]
