"""Test networks: hosts in network namespaces, joined by links that can be slow, cut, or harmful.

    from harness.network import Network

    with Network(mtu_bytes=9000) as net:  # cards=True: frames reach the ends as network cards hand them over, for XDP
        server, w0, w1 = net.star("server", "w0", "w1", wired=["w0"])  # 10.77.0.1, .2 and .3 on one Ethernet switch
        w0.link.harm(loss=0.02, reorder=0.01, seed=7)  # the same frames in every run; see Link.harm and Rule
        w1.link.limit(rate_bits=1e9)  # tbf, both ways; also .cut(), .mend(), .counts(towards=...), .a.counters()
        process = server.popen(["luwu", "serve"])  # ends with the network; process.output(), .wait(), .stop()
        print(w0.run(["ping", "-c1", server.address]))  # raises with the output when it fails
        with server.capture(port=4711) as capture, w0.udp() as udp:  # a socket of w0, here
            udp.sendto(b"hello", (server.address, 4711))
            assert capture.wait(1)[0].payload == b"hello"

In tests, take the fixture `network` (or `wired_network`, where links have wires): it makes networks as the class does,
shows the output of their processes when a test fails, and skips with the reason where there can be none. Racks and
trees: `net.switch(name)` and `net.link(a, b, wired=...)`; two hosts joined by a link have a segment of their own, and
all switches share one unless told otherwise. Needs root and iproute2; wires and cards need what `make test` builds.
"""

from harness.network.capture import Capture, Datagram
from harness.network.errors import NetworkError, NetworkUnavailableError
from harness.network.links import Link
from harness.network.network import Network
from harness.network.nodes import End, Host, Switch
from harness.network.processes import Process
from harness.network.wire import Match, Rule

__all__ = [
    "Capture",
    "Datagram",
    "End",
    "Host",
    "Link",
    "Match",
    "Network",
    "NetworkError",
    "NetworkUnavailableError",
    "Process",
    "Rule",
    "Switch",
]
