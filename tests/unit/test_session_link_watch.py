"""A worker says which connection of the data plane it waits for, once, and when it is back."""

from __future__ import annotations

import logging
import re
import threading
from types import SimpleNamespace

import pytest
from tests.integration.fabric_worker import small_manifest
from tests.unit.fake_core import FakeCore, FakeLink
from tests.unit.network_serving import KEY, QUICK

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.errors import ServerError
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.session import link_watch
from luwu.session.link_watch import LinkWatch
from luwu.session.remote import RemoteSession

URLS = ["luwu://10.0.0.1:7070", "luwu://10.0.0.2:7070"]
CLOCK = r"\d\d:\d\d:\d\d"
LOOKS = Timeouts(look_seconds=1.0)


@pytest.fixture
def watch_of(caplog):
    """Makes a watch that looks when it is told; the stats of its link are the test's to change."""
    caplog.set_level(logging.INFO, "luwu")

    def make(parent="", idle_heartbeat_seconds=0.05):
        network = pb.Network(parent_address=parent, parent_port=7000, idle_heartbeat_seconds=idle_heartbeat_seconds)
        server = SimpleNamespace(topology=pb.Topology(network=network))
        stats = {"broken_seconds": [0.0, 0.0], "silent_seconds": [0.0, 0.0]}
        return LinkWatch(SimpleNamespace(stats=lambda: stats), [server, server], URLS, LOOKS), stats

    return make


def test_a_broken_connection_is_said_once_with_the_end_of_the_wait_and_its_return(watch_of, caplog):
    watch, stats = watch_of()
    for seconds in (0.0, 1.9, 2.4, 3.4, 4.4, 0.0, 0.0, 1.0):
        stats["broken_seconds"][1] = seconds
        watch.look()
    broken, back = caplog.messages
    assert re.fullmatch(
        rf"waiting for the data connection to {URLS[1]}, which is broken, until {CLOCK} \(28 s\)", broken
    )
    assert back == f"the data connection to {URLS[1]} is back"


def test_a_silent_connection_is_said_once_until_it_is_back_also_where_it_breaks(watch_of, caplog):
    watch, stats = watch_of()
    for silent, broken in ((0.3, 0.0), (2.1, 0.0), (3.1, 0.0), (0.0, 0.4), (0.0, 2.4), (0.0, 0.0)):
        stats["silent_seconds"][0], stats["broken_seconds"][0] = silent, broken
        watch.look()
    quiet, back = caplog.messages
    assert re.fullmatch(
        rf"waiting for the data connection to {URLS[0]}, which is silent, until {CLOCK} \(48 s\)", quiet
    )
    assert back == f"the data connection to {URLS[0]} is back"


def test_a_parent_without_heartbeats_is_said_once_and_so_is_its_return(watch_of, caplog):
    watch, stats = watch_of("10.0.0.9")
    silent, lively = {"heartbeats_in": 7}, {"heartbeats_in": 7}
    stats["networks"] = [lively, silent]
    for _ in range(5):
        lively["heartbeats_in"] += 1
        watch.look()
    switch = f"the switch at 10.0.0.9:7000 below the server at {URLS[1]}"
    until = "until the server gives it up, 60 s after it has noticed"
    assert caplog.messages == [f"waiting for {switch}, which is silent over UDP, {until}"]
    silent["heartbeats_in"] += 1
    watch.look()
    assert caplog.messages[1:] == [f"{switch} is back"]


def test_a_server_that_is_silent_from_the_start_is_named_by_its_url(watch_of, caplog):
    watch, stats = watch_of()
    stats["networks"] = [{"heartbeats_in": 0}]
    for _ in range(2):
        watch.look()
    (said,) = caplog.messages
    assert said.startswith(f"waiting for the server at {URLS[0]}, which is silent over UDP, as long as ")


def test_heartbeats_that_are_rare_by_the_servers_settings_are_no_silence(watch_of, caplog):
    watch, stats = watch_of(idle_heartbeat_seconds=0.5)
    stats["networks"] = [{"heartbeats_in": 0}]
    for _ in range(9):
        watch.look()
    assert not caplog.messages


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A session whose data connection is broken from its beginning, and whose watch looks often."""
    stats = FakeLink.stats
    monkeypatch.setattr(FakeLink, "stats", lambda link: stats(link) | {"broken_seconds": [5.0]})
    wanted = ServerSettings(stores=(tmp_path / "store",), workers=1, listen="127.0.0.1:0")
    with NetworkServer(wanted, KEY, QUICK, start_core=FakeCore) as server:
        with RemoteSession(server.url, 0, 1, KEY, QUICK, {"tcp": FakeLink}) as session:
            yield session


def test_a_session_watches_its_link_until_it_ends_or_fails(session, monkeypatch):
    said = threading.Event()
    monkeypatch.setattr(link_watch.log, "warning", lambda *words: said.set())
    session.attach(small_manifest())
    assert said.wait(60)
    watch = session._link_watch
    session._fail(ServerError("as at the end of the control plane"))
    watch._thread.join(60)
    assert not watch._thread.is_alive()


def test_a_session_that_is_closed_watches_no_more(session):
    session.attach(small_manifest())
    session.close()
    session._link_watch._thread.join(60)
    assert not session._link_watch._thread.is_alive()
