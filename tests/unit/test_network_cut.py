"""A link that is cut: for a while it harms nobody, for good both sides notice."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.unit.fake_core import FakeCore, FakeLink

from luwu.control.address import parse_url
from luwu.control.credentials import Credentials
from luwu.control.timeouts import Timeouts
from luwu.errors import ServerError
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.session.remote import RemoteSession

KEY = Credentials(b"a key of the tests that is long enough")


class Cable:
    """Passes one connection on, and holds back what is sent while it is cut. ``held`` tells that both sides spoke."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"luwu://127.0.0.1:{self.listener.getsockname()[1]}"
        self.whole = threading.Event()
        self.whole.set()
        self.held = [threading.Event(), threading.Event()]
        self.target = target
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            near, _ = self.listener.accept()
            far = socket.create_connection(self.target)
            self.sockets = [near, far]
            for number, pair in enumerate(((near, far), (far, near))):
                threading.Thread(target=self.carry, args=(number, *pair), daemon=True).start()

    def carry(self, number: int, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.whole.is_set():
                    self.held[number].set()
                    self.whole.wait(60)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.whole.set()
        for each in (self.listener, *self.sockets):
            each.close()


@pytest.fixture
def connect(tmp_path):
    """A server, a cable and a session through it."""
    opened = []

    def start(timeouts):
        wanted = ServerSettings(stores=(tmp_path / "store",), workers=1, listen="127.0.0.1:0")
        server = NetworkServer(wanted, KEY, timeouts, start_core=FakeCore)
        address = parse_url(server.url)
        cable = Cable((address.host, address.port))
        session = RemoteSession(cable.url, 0, 1, KEY, timeouts, {"tcp": FakeLink})
        opened.extend((session, cable, server))
        return server, cable, session

    yield start
    for each in opened:
        each.close()


def test_a_link_that_is_cut_for_a_while_loses_nobody(connect):
    timeouts = Timeouts(keepalive_interval_seconds=1, keepalive_timeout_seconds=30, look_seconds=0.05)
    server, cable, session = connect(timeouts)
    worker = NumpyWorker(session, small_manifest())
    assert worker.step()
    cable.whole.clear()
    assert all(held.wait(60) for held in cable.held)  # each side asks whether the other is there, and hears nothing
    cable.whole.set()
    assert worker.step()
    assert server._runs.run.lost == []


def test_a_link_that_stays_cut_ends_the_run_on_both_sides(connect, caplog):
    timeouts = Timeouts(
        keepalive_interval_seconds=1, keepalive_timeout_seconds=4, look_seconds=0.05, leave_seconds=1, close_seconds=1
    )
    server, cable, session = connect(timeouts)
    worker = NumpyWorker(session, small_manifest())
    assert worker.step()
    run = server._runs.run
    cable.whole.clear()
    with pytest.raises(ServerError, match=cable.url):
        worker.step()
    assert run.wait_for_leaves(30)
    assert "worker 0 ended without leaving; the run stands at step 1" in run.lost[0]
