"""Frames of the control plane on a Unix socket, and what the server makes of them."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.network.namespaces import wait_until
from luwu.control import control_pb2 as pb
from luwu.control.frames import METHODS, decode, failure_of, receive, reply_of, send, short_address
from luwu.control.local_client import LocalClient
from luwu.control.rpc import LONGEST_ERROR_CHARACTERS, LONGEST_MESSAGE_BYTES, PROTOCOL_VERSION
from luwu.errors import ConfigError, ServerError, WorkerLostError
from luwu.server import socket_carrier
from luwu.server.server import LocalServer

MEMORY = 64 << 20
PATIENCE_SECONDS = 60.0


def within_a_minute(call: Callable[[], Any]) -> None:
    """Call something that a fault would let wait for ever; raise its error, or fail when it does not end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "it does not end"
    if errors:
        raise errors[0]


def test_the_methods_are_those_of_the_one_service() -> None:
    assert METHODS["Attach"].request is pb.AttachRequest and METHODS["Attach"].reply is pb.AttachReply
    assert {"Hello", "JoinWorker", "Report", "Leave"} < set(METHODS)


def test_a_frame_may_be_longer_than_a_message_over_the_network() -> None:
    ours, theirs = socket.socketpair()
    call = pb.Call(method="Attach", request=bytes(LONGEST_MESSAGE_BYTES + 1))
    with ours, theirs:
        sending = threading.Thread(target=send, args=(theirs, call))
        sending.start()
        received = receive(ours, pb.Call)
        sending.join()
    assert received is not None and received[0] == call


def test_a_frame_that_claims_too_much_is_refused_before_it_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<I", (1 << 30) + 1))
        with pytest.raises(OSError, match="claims"):
            receive(ours, pb.Call)


def test_bytes_of_another_language_are_refused() -> None:
    with pytest.raises(OSError, match="no Call"):
        decode(pb.Call, b'{"type": "join", "protocol": 4}')


def test_an_error_keeps_its_class_and_all_of_its_text() -> None:
    text = "x" * (3 * LONGEST_ERROR_CHARACTERS)
    with pytest.raises(WorkerLostError, match=f"^{text}$"):
        reply_of(failure_of(WorkerLostError(text)), METHODS["Attach"])
    with pytest.raises(ConfigError, match=r"^a\\udcff$"):  # a file's name need not be text
        reply_of(failure_of(ConfigError("a\udcff")), METHODS["Attach"])
    with pytest.raises(ServerError, match="does not say why"):
        reply_of(pb.Answer(failure=pb.Failure(error="KeyboardInterrupt")), METHODS["Attach"])


def test_the_server_refuses_another_protocol_and_methods_that_are_not_for_its_machine(tmp_path: Path) -> None:
    with LocalServer(tmp_path, None, MEMORY, 1) as server:
        client = LocalClient(server.socket_path)
        with pytest.raises(ConfigError, match=r"protocol version: expected \d+, found 99; install"):
            client.call("Hello", pb.HelloRequest(protocol_version=99))
        with pytest.raises(ServerError, match="must join"):
            client.call("Snapshot", pb.SnapshotRequest())
        client.join(0, 1)
        with pytest.raises(ConfigError, match="joined already through this connection"):
            client.call("JoinWorker", pb.JoinWorkerRequest(rank=0, workers=1))
        with pytest.raises(ServerError, match="found 'Begin'"):
            client.call("Begin", pb.BeginRequest())
        client.post("Leave", pb.LeaveRequest())
        server.wait_for_leaves(60)
        client.close()
        assert server.workers_lost() == []


def test_an_answer_that_was_interrupted_is_not_taken_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Any] = []
    with LocalServer(tmp_path, None, MEMORY, 1, on_report=lambda rank, report: reports.append(report)) as server:
        client = LocalClient(server.socket_path)
        client.join(0, 1)

        def interrupted(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("luwu.control.local_client.select.poll", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.call("Standing", pb.StandingRequest())
        client.post("Report", pb.ReportRequest(report='{"a": 1}'))
        assert (
            client.call("Hello", pb.HelloRequest(protocol_version=PROTOCOL_VERSION)).protocol_version
            == PROTOCOL_VERSION
        )
        assert reports == [{"a": 1}]
        client.close()


@pytest.mark.parametrize("direction", ["send", "receive"])
def test_a_connection_that_was_interrupted_within_a_frame_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with LocalServer(tmp_path, None, MEMORY, 1) as server:
        client = LocalClient(server.socket_path)
        client.join(0, 1)
        with monkeypatch.context() as patch:
            patch.setattr(f"luwu.control.local_client.{direction}", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.call("Standing", pb.StandingRequest())
        with pytest.raises(ServerError, match="interrupted within a message"):
            client.call("Standing", pb.StandingRequest())
        client.close()


def test_an_exception_of_a_method_is_logged_and_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(rank: int, report: Any) -> None:
        raise KeyError("column")

    with LocalServer(tmp_path, None, MEMORY, 1, on_report=refuse) as server:
        client = LocalClient(server.socket_path)
        client.join(0, 1)
        with pytest.raises(ServerError, match=r"the server failed in Report: KeyError\('column'\); look at its log"):
            client.call("Report", pb.ReportRequest(report="{}"))
        assert "control method Report failed" in caplog.text
        assert not client.call("Standing", pb.StandingRequest()).has_model
        client.close()


def test_a_server_without_descriptors_or_threads_takes_later_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket_carrier, "_RETRY_SECONDS", 0.01)
    accept, start, failed = socket.socket.accept, threading.Thread.start, set()

    def accept_later(listener: socket.socket) -> Any:
        if "accept" not in failed:
            failed.add("accept")
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "luwu-worker" and "start" not in failed:
            failed.add("start")
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    monkeypatch.setattr(threading.Thread, "start", start_later)
    with LocalServer(tmp_path, None, MEMORY, 1) as server:
        refused = LocalClient(server.socket_path)
        with pytest.raises(ServerError):
            within_a_minute(lambda: refused.join(0, 1))
        refused.close()
        client = LocalClient(server.socket_path)
        within_a_minute(lambda: client.join(0, 1))
        client.close()
    assert failed == {"accept", "start"}
    assert "could not be taken" in caplog.text and "is refused" in caplog.text


def test_a_server_closes_beside_a_worker_that_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_carrier, "ANSWER_SECONDS", 0.1)
    asked = threading.Event()

    def refuse(rank: int, report: Any) -> None:
        asked.set()
        raise ServerError("x" * (16 << 20))  # more than a socket keeps

    server = LocalServer(tmp_path, None, MEMORY, 1, on_report=refuse)
    client = LocalClient(server.socket_path)
    client.join(0, 1)
    send(client._connection, pb.Call(method="Report", request=pb.ReportRequest(report="{}").SerializeToString()))
    assert asked.wait(PATIENCE_SECONDS)
    within_a_minute(server.close)
    client.close()


def test_connections_that_have_ended_are_forgotten(tmp_path: Path) -> None:
    with LocalServer(tmp_path, None, MEMORY, 1) as server:
        for _ in range(20):
            LocalClient(server.socket_path).close()
        client = LocalClient(server.socket_path)
        client.join(0, 1)
        wait_until(lambda: len(server._carrier._serving) == 1, "the other connections are forgotten")
        client.close()


def test_the_address_of_a_socket_in_a_deep_folder_is_short(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["deep" * 10] * 5)
    folder.mkdir(parents=True)
    with short_address(folder / "luwu.sock") as address:
        assert len(os.fsencode(address)) < 108
    with LocalServer(folder, None, MEMORY, 1) as server:
        client = LocalClient(server.socket_path)
        client.join(0, 1)
        client.close()


def test_a_stopped_server_whose_queue_is_full_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "luwu.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as waiting:
        server.bind(str(path))
        server.listen(0)
        waiting.connect(str(path))  # nobody takes it in

        def ask() -> None:
            LocalClient(path, connect_seconds=0.0, answer_seconds=0.05)

        with pytest.raises(ServerError, match=r"took nobody in within 0\.05 s: its process is stopped or hangs"):
            within_a_minute(ask)
