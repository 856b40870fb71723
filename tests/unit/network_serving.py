"""A server on the network in this process over a data plane in memory, and its sessions: for tests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.unit.fake_core import FakeCore, FakeLink

from luwu.control import control_pb2 as pb
from luwu.control.credentials import Credentials
from luwu.control.timeouts import Timeouts
from luwu.errors import (
    LuwuError,
)
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.server.topology import SwitchMember, star
from luwu.session.remote import RemoteSession

KEY = Credentials(b"a key of the tests that is long enough")
QUICK = Timeouts(
    connect_seconds=30, look_seconds=0.05, drain_seconds=0.2, rejoin_seconds=5, gather_seconds=90, leave_seconds=20
)


@pytest.fixture
def serve(tmp_path):
    """Starts servers over fake cores; they are closed at the end."""
    servers = []

    def start(workers=1, name="store", timeouts=QUICK, credentials=KEY, on_report=None, **settings):
        wanted = ServerSettings(stores=(tmp_path / name,), workers=workers, **{"listen": "127.0.0.1:0"} | settings)
        servers.append(NetworkServer(wanted, credentials, timeouts, on_report, start_core=FakeCore, plan=star))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def join(server, rank=0, workers=1, credentials=KEY, timeouts=QUICK):
    return RemoteSession(server.url, rank, workers, credentials, timeouts, {"tcp": FakeLink})


def train(session, steps=3, manifest=None):
    worker = NumpyWorker(session, manifest or small_manifest())
    assert all(worker.step() for _ in range(steps))
    return worker


def together(server, workers, work):
    """Run `work(session)` for each worker in a thread of its own; its results or errors, by rank."""

    def one(rank):
        try:
            with join(server, rank, workers) as session:
                return work(session)
        except LuwuError as error:
            return error

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(workers)))


def hang_on(server, monkeypatch, switch):
    """Give a switch a place in the tree of every run."""

    def plan(ready):
        places = dict(star(ready))
        return places | {switch: pb.Topology(job=ready.job, workers=ready.workers)}

    monkeypatch.setattr(server._runs, "_plan", plan)


def make_switch(name="switch a", port=9):
    return SwitchMember(name=name, peer="here", address="", port=port, fan_in=8, payload_bytes=1408, parent="")
