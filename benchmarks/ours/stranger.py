"""A peer without a key: it opens connections and sends datagrams at a pace, as long as it is let, for strangers.py.

Settings: `host`; `connections` to hold at once; `connections_per_second` and `datagrams_per_second`; `openings`, pairs
of a port and what is said there first, in hexadecimal; `udp_ports`; `datagrams` in hexadecimal. It says {"full": true}
when it has opened as many connections as it is to hold, and goes on: each new one takes the place of the oldest. At the
end of its input it prints what it has done, in how many seconds of calling, and closes everything. It runs on idle time
of the processors alone, as if it had a machine of its own.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

from kit.child import settings

TICK_SECONDS = 0.01
CATCH_UP_TICKS = 20  # after a pause it calls at most so much at once
UNANSWERED_SECONDS = 3.0  # a handshake that takes so long was dropped
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Calls:
    """Connections of one stranger, the oldest first."""

    def __init__(self, host: str, openings: list[list[Any]], most: int) -> None:
        self.opened = self.unanswered = self.reset = 0
        self._host, self._most = host, most
        self._openings = itertools.cycle([(port, bytes.fromhex(words)) for port, words in openings])
        self._held: deque[socket.socket] = deque()
        self._dialled: deque[tuple[socket.socket, bytes, float]] = deque()

    def dial(self, now: float) -> None:
        """Begin a connection to the next port."""
        port, words = next(self._openings)
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        if one.connect_ex((self._host, port)) not in (0, errno.EINPROGRESS):
            self.reset += 1
            one.close()
            return
        self._dialled.append((one, words, now))

    def speak(self, now: float) -> None:
        """Say the first words on the connections that have come about."""
        for _ in range(len(self._dialled)):
            one, words, since = self._dialled.popleft()
            try:
                one.getpeername()
                if words:
                    one.send(words)
            except OSError as error:
                self._not_yet(one, words, since, now, error.errno)
                continue
            self.opened += 1
            self._held.append(one)
            if len(self._held) > self._most:
                self._held.popleft().close()

    def _not_yet(self, one: socket.socket, words: bytes, since: float, now: float, code: int | None) -> None:
        if code == errno.ENOTCONN and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            if now - since < UNANSWERED_SECONDS:
                self._dialled.append((one, words, since))
                return
            self.unanswered += 1
        else:
            self.reset += 1
        one.close()


class Flood:
    """Datagrams of one stranger, to each port in turn."""

    def __init__(self, host: str, ports: list[int], datagrams: list[str]) -> None:
        self.sent = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        words = [bytes.fromhex(datagram) for datagram in datagrams]
        self._next = itertools.cycle([(one, (host, port)) for one in words for port in ports])

    def send(self, count: int) -> None:
        """Send ``count`` datagrams, fewer where the way out is full."""
        for one, where in itertools.islice(self._next, count):
            try:
                self._socket.sendto(one, where)
            except OSError:  # no room, or a port that is closed by now
                return
            self.sent += 1


def main() -> None:
    """Calls until the input ends."""
    wanted = settings()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    calls = Calls(wanted["host"], wanted["openings"], wanted["connections"])
    flood = Flood(wanted["host"], wanted["udp_ports"], wanted["datagrams"])
    pace = [wanted["connections_per_second"] * TICK_SECONDS, wanted["datagrams_per_second"] * TICK_SECONDS]
    due = [0.0, 0.0]
    full, called = False, 0
    tick = time.monotonic()
    while not select.select([sys.stdin], [], [], max(0.0, tick - time.monotonic()))[0]:
        now = time.monotonic()
        ticks = min(CATCH_UP_TICKS, 1 + int((now - tick) / TICK_SECONDS))
        tick = max(tick + TICK_SECONDS, now)
        called += ticks
        due = [left + ticks * each for left, each in zip(due, pace, strict=True)]
        for _ in range(int(due[0])):
            calls.dial(now)
        flood.send(int(due[1]))
        due = [left - int(left) for left in due]
        calls.speak(now)
        if not full and calls.opened >= wanted["connections"]:
            full = True
            print(json.dumps({"full": True}), flush=True)
    counts = {"opened": calls.opened, "unanswered": calls.unanswered, "reset": calls.reset, "datagrams": flood.sent}
    print(json.dumps(counts | {"seconds": called * TICK_SECONDS}), flush=True)


if __name__ == "__main__":
    main()
