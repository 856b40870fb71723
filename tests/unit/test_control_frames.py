"""Frames of the control plane on a Unix socket, and what the server makes of them."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from luwu.control import control_pb2 as pb
from luwu.control.frames import METHODS, decode, failure_of, receive, reply_of, send, short_address
from luwu.control.local_client import LocalClient
from luwu.control.rpc import LONGEST_ERROR_CHARACTERS, LONGEST_MESSAGE_BYTES
from luwu.errors import ConfigError, ServerError, WorkerLostError
from luwu.server.server import LocalServer

MEMORY = 64 << 20


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
        assert server.wait_for_leaves(60) is None
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
            patch.setattr("luwu.control.local_client.receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.call("Standing", pb.StandingRequest())
        client.post("Report", pb.ReportRequest(report='{"a": 1}'))
        assert client.call("Hello", pb.HelloRequest(protocol_version=4)).protocol_version == 4
        assert reports == [{"a": 1}]
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
