"""A switch records while its server traces, counts packets meanwhile, and sends both once, with its clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from luwu.control import control_pb2 as pb
from luwu.core.trace import RECORD
from luwu.switch import tracing
from luwu.switch.tracing import SwitchTracing


class Native:
    """A native switch that has received one packet more at each look."""

    def __init__(self) -> None:
        self.most: list[int] = []
        self.serves = True
        self._looks = 0

    def start_trace(self, most_records: int) -> None:
        self.most.append(most_records)

    def stop_trace(self) -> tuple[bytes, int]:
        return bytes(5 * RECORD.itemsize), 7

    def stats(self) -> dict[str, Any]:
        self._looks += 1
        return {"packets_in": self._looks, "packets_out": 20, "sums_sent_again": 3} if self.serves else {}


class Server:
    """The server that a switch sends to; its clock is an hour ahead."""

    AHEAD_NS = 3600 * 10**9

    def __init__(self) -> None:
        self.taken: list[pb.TraceRecordsRequest] = []

    def __call__(self, request: pb.TraceRecordsRequest) -> pb.TraceRecordsReply:
        if request.records or request.last:
            self.taken.append(request)
        return pb.TraceRecordsReply(clock_ns=time.monotonic_ns() + self.AHEAD_NS)


def test_a_switch_sends_its_records_and_counts_when_a_trace_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luwu.core.trace.PIECE_ITEMS", 3)
    native, server = Native(), Server()
    made = SwitchTracing(native)
    made.look(server)
    made.take(pb.SwitchTrace(records=9))
    made.look(server)
    assert native.most == [9] and not server.taken
    made.take(pb.SwitchTrace())
    made.look(server)
    made.look(server)
    assert [len(request.records) for request in server.taken] == [120, 80, 0]
    assert [request.last for request in server.taken] == [False, False, True]
    last = server.taken[-1]
    assert last.dropped == 7 and [counts.came for counts in last.packets] == [1, 2, 3]
    assert {(counts.sent, counts.resent) for counts in last.packets} == {(20, 3)}
    assert abs(last.clock_ns - Server.AHEAD_NS) <= last.clock_error_ns


def test_a_switch_without_a_run_sends_no_counts_and_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_COUNTS", 2)
    native, server = Native(), Server()
    made = SwitchTracing(native)
    native.serves = False
    made.take(pb.SwitchTrace(records=9))
    native.serves = True
    for _ in range(4):
        made.look(server)
    made.take(pb.SwitchTrace())
    made.look(server)
    assert [counts.came for counts in server.taken[-1].packets] == [2, 3]


def test_the_end_of_a_trace_that_a_switch_does_not_know_is_no_matter() -> None:
    server = Server()
    made = SwitchTracing(Native())
    made.take(pb.SwitchTrace())
    made.look(server)
    assert not server.taken
