"""A thread that logs which connection of the data plane a worker waits for, and when it is back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from luwu.control.address import HostPort
from luwu.control.links import ServerLink, WorkerLink
from luwu.control.timeouts import PATIENCE_SECONDS, Timeouts
from luwu.control.waiting import until

HEARTBEATS_MISSED = 20
"""Heartbeats that must be missing before their sender is called silent; some are lost, and some come late."""

log = logging.getLogger(__name__)


class LinkWatch:
    """Watch over a worker's link from `start` until `stop`.

    Pulls and pushes wait in native code, in several threads, so none of them can tell what it waits for.

    Args:
        link: the data plane.
        servers: addresses of its servers. urls: of their control planes, in the same order.
        timeouts: timeouts of the network.
    """

    def __init__(
        self, link: WorkerLink, servers: Sequence[ServerLink], urls: Sequence[str], timeouts: Timeouts
    ) -> None:
        self._link = link
        self._servers = servers
        self._urls = urls
        self._timeouts = timeouts
        self._said: set[str] = set()
        self._heard = [0] * len(servers)
        self._silent_seconds = [0.0] * len(servers)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="luwu-link", daemon=True)

    def start(self) -> None:
        """Begin to look, in a thread that nobody needs to wait for."""
        self._thread.start()

    def stop(self) -> None:
        """Say nothing any more: the link is about to end, or the session has failed."""
        self._ended.set()

    def look(self) -> None:
        """Log what has been broken or silent for more than `PATIENCE_SECONDS`, and what is back, once each."""
        stats = self._link.stats()
        for url, broken, silent in zip(self._urls, stats["broken_seconds"], stats["silent_seconds"], strict=True):
            longest = self._timeouts.reconnect_seconds + (0 if broken else self._timeouts.silence_seconds)
            seconds = broken or silent
            self._note(
                f"the data connection to {url}",
                f"which is {'broken' if broken else 'silent'}, {until(max(0, round(longest - seconds)))}",
                seconds,
            )
        for number, network in enumerate(stats.get("networks", ())):
            self._look_at_tree(number, network.get("heartbeats_in", 0))

    def _look_at_tree(self, number: int, heard: int) -> None:
        """Note a parent that sends no heartbeats. Looks count, not time: this process may have been stopped itself."""
        silent = self._silent_seconds[number] + self._timeouts.look_seconds if heard == self._heard[number] else 0.0
        self._heard[number], self._silent_seconds[number] = heard, silent
        network = self._servers[number].topology.network
        server = f"the server at {self._urls[number]}"
        if network.parent_address:
            parent = f"the switch at {HostPort(network.parent_address, network.parent_port)} below {server}"
            end = f"until the server gives it up, {self._timeouts.switch_return_seconds:g} s after it has noticed"
        else:
            parent = server
            end = "as long as its other connections last"
        patience = HEARTBEATS_MISSED * network.idle_heartbeat_seconds
        self._note(parent, f"which is silent over UDP, {end}", silent, patience)

    def _note(self, what: str, trouble: str, seconds: float, patience: float = 0.0) -> None:
        if seconds >= max(PATIENCE_SECONDS, patience) and what not in self._said:
            self._said.add(what)
            log.warning("waiting for %s, %s", what, trouble)
        elif seconds == 0 and what in self._said:
            self._said.remove(what)
            log.warning("%s is back", what)

    def _run(self) -> None:
        while not self._ended.wait(self._timeouts.look_seconds):
            self.look()
