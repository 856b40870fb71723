"""Ports and stores of servers on the network: those that are busy, another program's, or nobody's."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress

import pytest
from tests.unit.fake_core import FakeLink
from tests.unit.network_serving import KEY, QUICK, serve, train

from luwu.control import client as control
from luwu.control.credentials import Credentials
from luwu.control.health import check_health
from luwu.control.probing import Answer
from luwu.control.timeouts import Timeouts
from luwu.errors import AuthenticationError, ConfigError, ServerError, StoreLockedError
from luwu.session.remote import RemoteSession

__all__ = ["serve"]  # a fixture


def test_nobody_listens(serve):
    server = serve()
    url = server.url
    server.close()
    quick = QUICK.model_copy(update={"connect_seconds": 0.5})
    with pytest.raises(
        ServerError, match=rf"no server answered at {url} within 0\.5 s \(the connection was refused: no "
    ):
        RemoteSession(url, 0, 1, KEY, quick)
    with pytest.raises(ServerError, match=rf"^{url} refused the connection: no server listens there; start it"):
        check_health(url, KEY)


def test_a_health_check_of_another_program_says_what_was_expected():
    def answer():
        with suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    connection.recv(1 << 10)
                    connection.sendall(b"SSH-2.0-another program\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=answer)
        other.start()
        with pytest.raises(ServerError, match="expected a luwu server without TLS, found a port that answers"):
            check_health(f"luwu://127.0.0.1:{listener.getsockname()[1]}", KEY)
        listener.shutdown(socket.SHUT_RDWR)
        other.join()


def test_one_store_has_one_server(serve):
    serve()
    with pytest.raises(StoreLockedError, match=r"the store .* is in use by process"):
        serve()


def test_a_busy_port_of_the_data_plane_is_noticed_at_the_start(serve):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServerError, match=f"127.0.0.1:{port}: Address already in use; choose another --data-port"):
            serve(data_port=port)
    serve(data_port=port)


def test_one_port_has_one_server(serve):
    port = serve().port
    with pytest.raises(ServerError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use; choose"):
        serve(name="another", listen=f"127.0.0.1:{port}")


def test_a_server_without_key_or_certificates_does_not_start(serve):
    with pytest.raises(ConfigError, match="openssl rand"):
        serve(credentials=Credentials())


def test_a_server_that_was_started_a_moment_ago_is_not_taken_for_a_stranger(serve, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    probes = []

    def answer_otherwise(client):
        probes.append(None)
        if len(probes) == control.REFUSALS:  # what gRPC says from now on is older than the server
            serve(listen=f"127.0.0.1:{port}")
        return Answer.OTHER

    monkeypatch.setattr(control.ControlClient, "_probe", answer_otherwise)
    patient = Timeouts(**QUICK.model_dump() | {"connect_seconds": 20})
    with RemoteSession(f"luwu://127.0.0.1:{port}", 0, 1, KEY, patient, {"tcp": FakeLink}) as session:
        train(session)


def test_a_server_that_is_slow_to_answer_is_not_taken_for_a_stranger(serve):
    """A port is silent for longer than a stranger gets: a busy machine, or a server that was stopped for a while."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    hasty = {"retry_seconds": 0.05, "refused_seconds": 0.3, "connect_seconds": 30}  # judges after eight connections

    def answer_at_last():
        with ExitStack() as silent:
            for _ in range(12):
                silent.enter_context(listener.accept()[0])
            listener.close()
        serve(listen=f"127.0.0.1:{port}")

    late = threading.Thread(target=answer_at_last)
    late.start()
    patient = Timeouts(**QUICK.model_dump() | hasty)
    with RemoteSession(f"luwu://127.0.0.1:{port}", 0, 1, KEY, patient, {"tcp": FakeLink}) as session:
        train(session)
    late.join()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", AuthenticationError, "does not answer as a luwu server"),
        (b"", ServerError, r"within 2 s \(connections were closed without an answer\)"),
    ],
)
def test_bytes_of_another_program_are_told_at_once_and_closed_connections_at_the_end(answer, error, message):
    """A server's door closes connections without a byte, too, where a stranger on this address opens many."""

    def serve_others():
        with suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    connection.recv(1 << 10)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=serve_others)
        other.start()
        hasty = Timeouts(**QUICK.model_dump() | {"retry_seconds": 0.05, "refused_seconds": 0.1, "connect_seconds": 2})
        with pytest.raises(error, match=message):
            RemoteSession(f"luwu://127.0.0.1:{listener.getsockname()[1]}", 0, 1, KEY, hasty, {"tcp": FakeLink})
        listener.shutdown(socket.SHUT_RDWR)
        other.join()
