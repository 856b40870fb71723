"""Capacity of a link on this machine, plain and over a wire: `python -m harness.network.speed`.

Sends UDP datagrams of the largest size for some seconds, from one process to another, and counts the frames that arrive
at the receiver's interface. Segmentation in the kernel (UDP_SEGMENT) saves the sender system calls, so that the link
is what limits, as far as that is possible on few cores.
"""

from __future__ import annotations

import sys
import time

from harness.network.network import Network

SECONDS = 3.0
HEADERS_BYTES = 28

SENDER = """
import socket, sys, time
address, port, size, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(17, 103, size)  # UDP_SEGMENT
udp.connect((address, port))
batch = bytes(size * max(1, 60000 // size))
end = time.monotonic() + seconds
while time.monotonic() < end:
    udp.send(batch)
"""


def measure(network: Network) -> tuple[float, float]:
    """Frames a second, and bits a second, that arrive at the receiver; nobody reads them there."""
    receiver = network["receiver"].ends[0]
    with network["receiver"].udp() as udp:
        address, port = udp.getsockname()
        before, began = receiver.counters(), time.monotonic()
        arguments = [address, str(port), str(network.mtu_bytes - HEADERS_BYTES), str(SECONDS)]
        network["sender"].run([sys.executable, "-c", SENDER, *arguments])
        after, seconds = receiver.counters(), time.monotonic() - began
    frames = after.received_frames - before.received_frames
    return frames / seconds, 8 * (after.received_bytes - before.received_bytes) / seconds


def main() -> None:
    """Print one line for each MTU and kind of link."""
    for mtu_bytes in (1500, 9000):
        for wired in (False, True):
            with Network(mtu_bytes=mtu_bytes) as network:
                link = network.link("sender", "receiver", wired=wired)
                frames, bits = measure(network)
                kind = "wire" if wired else "veth"
                print(f"MTU {mtu_bytes} {kind}: {frames:9,.0f} frames/s {bits / 1e9:6.2f} Gb/s", end="")
                print(f"  {link.counts('receiver')}" if wired else "")


if __name__ == "__main__":
    main()
