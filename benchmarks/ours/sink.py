"""A host that takes connections and datagrams and does nothing with them, to measure what calling at it costs.

Settings: `host`, `tcp_ports` and `udp_ports`, numbers of each; `held`, connections that stay open. It says its ports,
{"tcp": [...], "udp": [...]}, and ends with its input. It runs on idle time of the processors alone.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections import deque

from kit.child import settings

DATAGRAM_BYTES = 2048
AT_A_TIME = 64


def main() -> None:
    """Takes what comes until the input ends."""
    wanted = settings()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    listeners = [socket.create_server((wanted["host"], 0), backlog=128) for _ in range(wanted["tcp_ports"])]
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(wanted["udp_ports"])]
    for one in sockets:
        one.bind((wanted["host"], 0))
    for one in [*listeners, *sockets]:
        one.setblocking(False)
    ports = {name: [one.getsockname()[1] for one in ones] for name, ones in (("tcp", listeners), ("udp", sockets))}
    print(json.dumps(ports), flush=True)
    held: deque[socket.socket] = deque(maxlen=wanted["held"])
    while sys.stdin not in (ready := select.select([sys.stdin, *listeners, *sockets], [], [])[0]):
        for one in ready:
            for _ in range(AT_A_TIME):
                try:
                    if one in listeners:
                        held.append(one.accept()[0])
                    else:
                        one.recv(DATAGRAM_BYTES)
                except OSError:
                    break


if __name__ == "__main__":
    main()
