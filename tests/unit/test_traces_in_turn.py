"""Traces of one run, one after the other: whose they are, and which of their workers' records belong to them."""

from __future__ import annotations

import pytest
from tests.unit.test_run_tracing import BLOCKS, BYTES, Clock, Core, begun, sent

from luwu.control import control_pb2 as pb
from luwu.core.trace import RECORD
from luwu.errors import ConfigError, StepOrderError
from luwu.server import tracing
from luwu.server.tracing import RunTracing


def test_a_trace_is_another_ones_only_when_nobody_asks_for_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "PIECE_BYTES", 16)
    clock = Clock()
    made, core = begun(1, clock)
    core.done = bytes(RECORD.itemsize), 0, 4, 6
    assert made.answer(core, (0,), BLOCKS, 0).waits_for == "the records of 1 worker"
    for come in (False, True):  # it waits for records, and it is fetched
        clock.now += 9.0
        if come:
            made.take(0, sent(1))
        reply = made.answer(core, (0,), BLOCKS, 0)
        with pytest.raises(StepOrderError, match="another trace of this run is under way"):
            made.start(core, range(1), 1, BYTES)
    made.answer(core, (0,), BLOCKS, reply.size - 16)
    made.start(core, range(1), 1, BYTES)
    assert len(core.started) == 2 and not core.given_up
    core.done = b"", 0, 7, 7
    made.answer(core, (0,), BLOCKS, 0)
    clock.now += 10.0
    made.start(core, range(1), 1, BYTES)
    assert len(core.started) == 3


def whole_trace(made: RunTracing, core: Core) -> pb.RunTrace:
    return pb.RunTrace.FromString(made.answer(core, (0, 1), BLOCKS, 0).content)


def test_late_records_of_the_trace_before_are_not_taken_for_this_ones() -> None:
    clock = Clock()
    made, core = begun(2, clock)
    made.take(1, sent(1, last=False))
    clock.now, core.step = 10.0, 6
    made.start(core, range(2), 1, BYTES)  # nobody waits for the one before
    made.take(0, sent(2, last=False))
    made.take(0, sent(0))
    made.take(1, sent(0))
    core.done = b"", 0, 7, 8
    assert made.answer(core, (0, 1), BLOCKS, 0).waits_for == "the records of 2 workers"
    for rank in range(2):  # a worker does not see where the one begins, and sends all that it has
        made.take(rank, sent(1, last=False, step=6))
        made.take(rank, pb.TraceRecordsRequest(profile=pb.Profile(events=b"ab")))
        made.take(rank, sent(rank + 1, step=7))
    found = whole_trace(made, core)
    assert [process.records for process in found.processes[1:]] == [sent(count, step=7).records for count in (1, 2)]
    assert list(found.missing) == []


def test_who_was_refused_sends_the_next_trace_from_its_begin() -> None:
    clock = Clock()
    made, core = begun(1, clock)
    with pytest.raises(ConfigError, match="records: expected at most"):
        made.take(0, sent(BYTES // RECORD.itemsize + 1, last=False))
    clock.now = 10.0
    made.start(core, range(1), 1, BYTES)
    made.take(0, sent(1))
    core.done = b"", 0, 4, 4
    assert whole_trace(made, core).processes[1].records == sent(1).records


def test_a_trace_says_what_it_lacks_of_a_worker_that_another_one_came_for() -> None:
    made, core = begun(3)
    made.take(0, sent(1))
    made.take(1, sent(1, last=False))
    for rank in range(3):
        made.lose(rank)  # of which the first one's records have come
    made.take(1, sent(2, step=7))
    made.take(2, sent(1))
    core.done = b"", 0, 4, 8
    found = pb.RunTrace.FromString(made.answer(core, (0, 1, 2), BLOCKS, 0).content)
    assert [process.records for process in found.processes[1:]] == [
        sent(1).records, sent(2, step=7).records, sent(1).records,
    ]  # fmt: skip
    assert list(found.missing) == ["worker 1 until step 6", "worker 2 in part"]


def test_a_lost_worker_whom_nobody_came_for_is_missing_as_a_whole() -> None:
    made, core = begun(2)
    made.take(1, sent(1, last=False))
    made.lose(1)
    made.take(0, sent(1))
    core.done = b"", 0, 4, 4
    found = pb.RunTrace.FromString(made.answer(core, (0,), BLOCKS, 0).content)
    assert list(found.missing) == ["worker 1"]
