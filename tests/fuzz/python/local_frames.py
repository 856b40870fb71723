"""Frames through the Unix socket: what a worker of the server's machine calls, and what an answer is."""

from __future__ import annotations

import os
import re
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fuzz.python.support import Input, allowing, faults_raised, scratch

from luwu.control import control_pb2 as pb
from luwu.control.frames import METHODS, receive, reply_of, send
from luwu.control.rpc import PROTOCOL_VERSION
from luwu.core import errors
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.errors import LuwuError
from luwu.server.local_service import LocalCaller, LocalService
from luwu.server.membership import Membership
from luwu.server.socket_carrier import serve_calls
from luwu.store.run_record import Counts

PATIENCE_SECONDS = 0.5
MANIFEST = Manifest("float32", 64, (BlockManifest("a", True, (ParameterManifest("a.w", (8,), 0, 8),), 8),)).to_json()
REQUESTS: dict[str, Any] = {
    "Hello": pb.HelloRequest(protocol_version=PROTOCOL_VERSION),
    "JoinWorker": pb.JoinWorkerRequest(rank=0, workers=1),
    "Standing": pb.StandingRequest(manifest=MANIFEST),
    "Attach": pb.AttachRequest(manifest=MANIFEST),
    "SetSegments": pb.SetSegmentsRequest(block=1, segments=[pb.Segment(end=4, group=0)]),
    "Report": pb.ReportRequest(report='{"kind": "say"}'),
    "Trace": pb.TraceRequest(steps=1, most_bytes=1 << 16),
}
FOR_STRANGERS = ("Hello", "JoinWorker", "Leave", "Status", "Trace")
_MOST_CALLS = 16


class _Core:
    """Takes what the native core would: numbers in its ranges."""

    def __init__(self, initialised: bool, file: int) -> None:
        self.initialised = initialised
        self._file = file

    def look(self) -> bytes:
        return b"\2"

    def stats(self) -> dict[str, Any]:
        return {
            "step": 3,
            "attempts": 4,
            "rolled_back": 1,
            "loss_scale": 2.0 if self.initialised else None,
            "good_steps": 5,
            "unwritten": 1,
        }

    def make_durable(self, at_most_seconds: float) -> bool:
        return True

    def finish(self, at_most_seconds: float) -> bool:
        return True

    def files_of(self, rank: int) -> list[int]:
        return [self._file, self._file]

    def set_segments(self, block: int, segments: list[tuple[int, int]]) -> None:
        assert 0 <= block < 1 << 32 and all(0 <= end < 1 << 64 and 0 <= group < 1 << 32 for end, group in segments)

    def take_snapshot(self) -> int:
        return 3

    def start_trace(self, attempts: int, most_records: int, most_of_worker: int) -> None:
        assert 0 < attempts < 1 << 32 and 0 < most_of_worker <= most_records < 1 << 28

    def end_trace(self) -> None: ...

    def give_trace_up(self) -> None: ...

    def take_trace(self) -> tuple[bytes, int, int, int] | None:
        return b"", 0, 1, 2

    def failure(self) -> None: ...
    def worker_left(self, rank: int) -> None: ...
    def fail_run(self, message: str) -> None: ...
    def close(self) -> None: ...


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    calls = [_call(given) for _ in range(min(given.number(), _MOST_CALLS))]
    frames = [call.SerializeToString() for call in calls]
    stream = b"".join(struct.pack("<I", len(frame)) + frame for frame in frames) + given.rest()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = {os.fstat(end.fileno()).st_ino for end in (ours, theirs)}
        ours.settimeout(PATIENCE_SECONDS)
        if mode & 1 and stream:
            socket.send_fds(theirs, [stream[:4]], [ours.fileno()] * (mode // 32))
            stream = stream[4:]
        theirs.sendall(stream)
        theirs.shutdown(socket.SHUT_WR)
        run: Membership[Any] = Membership(1, lambda manifest: _Core(bool(mode & 2), ours.fileno()))
        service = LocalService(run, [scratch()], Counts, _reported)
        caller = LocalCaller()
        with faults_raised():
            allowing(OSError, lambda: serve_calls(ours, service, caller))
        ours.shutdown(socket.SHUT_WR)
        _check_answers(theirs, calls)
        service.ended(caller)
        assert run.joined == set(), "a worker whose connection has ended is gone"
    assert not sent & _open_sockets(), "files are the caller's, or closed"
    _check_answer(given, mode)


def _call(given: Input) -> pb.Call:
    """A call: of a method or another, with a good request or another."""
    chosen, how = given.number(), given.number()
    name = list(METHODS)[chosen % len(METHODS)] if chosen < 240 else given.bytes(chosen - 240).decode("latin-1")
    request = REQUESTS[name].SerializeToString() if how % 2 and name in REQUESTS else given.bytes(how // 2)
    return pb.Call(method=name, request=request, unanswered=how % 16 == 15)


def _check_answers(theirs: socket.socket, calls: list[pb.Call]) -> None:
    """Check what came for the calls: answers in their order, perhaps not to all, and to no stranger."""
    joined = left = False
    theirs.settimeout(PATIENCE_SECONDS)
    for call in calls:
        if call.unanswered:  # it may have been taken
            joined, left = joined or call.method == "JoinWorker", left or call.method == "Leave"
            continue
        received = receive(theirs, pb.Answer)
        if received is None:
            return
        assert not left, "nothing is answered after a worker has left"
        answer, files = received
        for file in files:
            os.close(file)
        if answer.HasField("failure"):
            assert issubclass(getattr(errors, answer.failure.error), LuwuError) and answer.failure.message
            continue
        assert joined or call.method in FOR_STRANGERS, "a worker must join first"
        assert len(files) == (2 if call.method == "Attach" else 0)
        reply_of(answer, METHODS[call.method])
        joined, left = joined or call.method == "JoinWorker", call.method == "Leave"


def _check_answer(given: Input, mode: int) -> None:
    """Check that a worker reads any answer, and reads an answer as it was written."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        answer = (
            pb.Answer(failure=pb.Failure(error="ConfigError", message="why")) if mode & 4 else pb.Answer(reply=b"x")
        )
        send(theirs, answer, [theirs.fileno()] * (mode // 8 % 2))
        received = receive(ours, pb.Answer)
        assert received is not None and received[0] == answer, "an answer is read as it was written"
        for file in received[1]:
            os.close(file)
        method = list(METHODS.values())[mode % len(METHODS)]
        allowing((LuwuError, OSError), lambda: reply_of(answer, method))


def _open_sockets() -> set[int]:
    """Return the inodes of this process's open sockets. Files that other threads open or close say nothing here."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            match = re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink()))
            found |= {int(match[1])} if match else set()
    return found


def _reported(rank: int, report: Any) -> None:
    assert rank == 0
