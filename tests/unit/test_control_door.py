"""The control plane before strangers: calls without a message, large messages, and connections that say nothing."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.unit.fake_core import FakeCore, FakeLink

from harness.network.namespaces import wait_until
from luwu.control import control_pb2 as pb
from luwu.control import control_pb2_grpc
from luwu.control.credentials import Credentials
from luwu.control.rpc import PROTOCOL_VERSION
from luwu.control.timeouts import Timeouts
from luwu.errors import AuthenticationError, ServerError
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.server.topology import star
from luwu.session.remote import RemoteSession
from luwu.switch.service import SwitchService
from luwu.switch.settings import SwitchSettings

KEY = Credentials(b"a key of the tests that is long enough")
TIMEOUTS = Timeouts(
    connect_seconds=20, challenge_seconds=3600, look_seconds=0.05, drain_seconds=0.2, leave_seconds=5, close_seconds=0.1
)
"""Challenge time that is too long to close a stranger's connection."""

HELLO = "/luwu.control.v1.Control/Hello"


@pytest.fixture
def server(tmp_path):
    """A server over a fake core, for one worker."""
    settings = ServerSettings(stores=(tmp_path / "store",), workers=1, listen="127.0.0.1:0")
    with NetworkServer(settings, KEY, TIMEOUTS, start_core=FakeCore, plan=star) as serving:
        yield serving


def join(server):
    return RemoteSession(server.url, 0, 1, KEY, TIMEOUTS, {"tcp": FakeLink})


def check_trains(session):
    worker = NumpyWorker(session, small_manifest())
    assert worker.step()
    assert np.isfinite(worker.read(1)).all()


def connection_to(service):
    """Return a channel with a connection of its own."""
    return grpc.insecure_channel(f"127.0.0.1:{service.port}", [("grpc.use_local_subchannel_pool", 1)])


@pytest.fixture
def channels(server):
    """A function that makes connected channels of strangers, each with a connection of its own, until the test ends."""
    with ExitStack() as stack:

        def make(count):
            made = [stack.enter_context(connection_to(server)) for _ in range(count)]
            for channel in made:
                grpc.channel_ready_future(channel).result(60)
            return made

        yield make


@pytest.fixture
def no_message():
    """A stream of messages that sends none until the test ends."""
    ended = threading.Event()

    def messages():
        ended.wait()
        yield from ()

    yield messages
    ended.set()


@pytest.mark.parametrize(("connections", "calls"), [(1, 80), (80, 1)])
def test_calls_without_a_message_keep_no_worker_out(server, channels, no_message, connections, calls):
    hello = [channel.stream_unary(HELLO) for channel in channels(connections) for _ in range(calls)]
    under_way = [call.future(no_message()) for call in hello]
    with join(server) as session:
        check_trains(session)
    assert len(under_way) == 80


def test_a_stranger_may_send_little_and_a_worker_much(server, channels):
    (channel,) = channels(1)
    stub = control_pb2_grpc.ControlStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Hello(pb.HelloRequest(protocol_version=PROTOCOL_VERSION, nonce=bytes(40_000)), timeout=60)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert server._door.counts()["talkative"] == 1
    with join(server) as session:
        session.report({"kind": "step", "text": "x" * 1_000_000})
        check_trains(session)


def test_connections_that_say_nothing_displace_each_other(server):
    with join(server) as session, ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))
        session.close()
        with join(server) as second:  # admitted after all of them
            assert server._door.counts()["crowded"] >= 400 - 256
            # A connection that the client opened in vain counts until the door has seen its end.
            wait_until(lambda: server._door.counts()["strangers"] == 0, "the door has only those that were admitted")
            check_trains(second)


def test_a_refusal_names_the_address_that_it_came_from(server, caplog):
    with pytest.raises(AuthenticationError):
        RemoteSession(server.url, 0, 1, Credentials(), TIMEOUTS, {"tcp": FakeLink})
    assert "peer=127.0.0.1:" in caplog.text


def test_an_exception_of_a_method_is_logged_and_told(tmp_path, caplog):
    def refuse(rank, report):
        raise KeyError("column")

    settings = ServerSettings(stores=(tmp_path / "store",), workers=1, listen="127.0.0.1:0")
    with (
        NetworkServer(settings, KEY, TIMEOUTS, refuse, start_core=FakeCore, plan=star) as server,
        join(server) as session,
    ):
        with pytest.raises(ServerError, match=r"the server at luwu:.* failed in Report: KeyError\('column'\); look"):
            session.report({})
        assert "control method Report failed" in caplog.text
        check_trains(session)


@pytest.fixture
def switch():
    """A switch whose server is not there."""
    settings = SwitchSettings(server="luwu://127.0.0.1:1", name="rack", listen="127.0.0.1:0")
    with SwitchService(settings, KEY, TIMEOUTS) as serving:
        yield serving


def check_health(service):
    with connection_to(service) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=20, wait_for_ready=True)
    assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_switch_does_not_serve_before_it_looks_for_its_server(monkeypatch):
    monkeypatch.setattr(SwitchService, "_live", lambda self: self._closing.wait())
    settings = SwitchSettings(server="luwu://127.0.0.1:1", name="rack", listen="127.0.0.1:0")
    with SwitchService(settings, KEY, TIMEOUTS) as serving:
        check_health(serving)


def test_calls_and_watches_of_strangers_keep_no_health_check_out_of_a_switch(switch, no_message):
    under_way = []
    with ExitStack() as stack:
        for _ in range(10):
            channel = stack.enter_context(connection_to(switch))
            under_way.append(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60))
            next(under_way[-1])
            under_way.append(channel.stream_unary("/grpc.health.v1.Health/Check").future(no_message()))
        check_health(switch)


def test_watches_that_end_while_answers_change_hold_up_nobody(switch):
    ended = threading.Event()

    def change():
        while not ended.is_set():
            switch._set_health(True)
            switch._set_health(False)

    changing = threading.Thread(target=change, daemon=True)
    with connection_to(switch) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        changing.start()
        for _ in range(100):
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
            next(watch)
            watch.cancel()
    ended.set()
    changing.join(20)
    assert not changing.is_alive()
    switch._set_health(False)
    check_health(switch)


def test_a_switch_holds_few_connections_that_say_nothing(switch):
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", switch.port), 60))
        check_health(switch)
        assert switch._door.counts()["crowded"] >= 400 - 256
