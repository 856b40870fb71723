"""Traces of one run, one after the other: whose they are, and which of their workers' records belong to them."""

from __future__ import annotations

import re

import pytest
from tests.unit.test_run_tracing import BLOCKS, BYTES, Clock, Core, begun, sent
from tests.unit.test_server_membership import MANIFEST

from luwu.control import control_pb2 as pb
from luwu.control.tracing import trace_run
from luwu.core.trace import RECORD
from luwu.errors import ConfigError, ServerError
from luwu.server import tracing
from luwu.server.membership import Membership, look_for_missing
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
        with pytest.raises(ServerError, match="another trace of this run is under way"):
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


@pytest.mark.parametrize(
    ("steps", "most_bytes", "profiled", "words"),
    [
        (0, BYTES, None, "steps: expected 1 to 1000, found 0"),
        (10**10, BYTES, None, "steps: expected 1 to 1000, found 10000000000"),
        (21, BYTES, 0, "steps: expected 1 to 20 with a profile, found 21"),
        (1, 1 << 70, None, "limit: expected 65536 to 1073741824 bytes, found 1180591620717411303424"),
        (1, BYTES, -1, "profile-worker: expected a worker's number, 0 to 65534, found -1"),
        (1, BYTES, 1 << 40, "profile-worker: expected a worker's number, 0 to 65534, found 1099511627776"),
    ],
)
def test_no_server_is_asked_for_numbers_that_no_trace_has(
    steps: int, most_bytes: int, profiled: int | None, words: str
) -> None:
    asked: list[pb.TraceRequest] = []
    with pytest.raises(ConfigError, match=re.escape(words)):
        trace_run([asked.append], steps, most_bytes, lambda text: None, profile_worker=profiled)
    assert asked == []


class Server:
    """A server of a job; ``fails`` tells by a request whether the answer is an error."""

    def __init__(self) -> None:
        self.made, self.core = RunTracing(Clock()), Core()
        self.fails = lambda request: False

    def ask(self, request: pb.TraceRequest) -> pb.TraceReply:
        if self.fails(request):
            raise ServerError("it does not answer")
        if request.steps:
            self.made.start(self.core, (), request.steps, request.most_bytes)
            return pb.TraceReply(waits_for="the run's next steps")
        if request.end and request.alone:
            self.made.give_up(self.core)
            return pb.TraceReply()
        return self.made.answer(self.core, (), BLOCKS, request.offset)


@pytest.mark.parametrize("steps", [3, 0])
def test_servers_give_a_trace_up_when_it_fails_at_one_of_them(steps: int) -> None:
    servers = [Server(), Server()]
    servers[0].fails = lambda request: request.steps == steps and not request.end
    asks = [server.ask for server in servers]
    with pytest.raises(ServerError, match="it does not answer"):
        trace_run(asks, 3, BYTES, lambda text: None, lambda seconds: None)
    assert [server.core.given_up for server in servers] == [steps == 0, True]
    for server in servers[1 if steps else 0 :]:
        server.made.start(server.core, (), 3, BYTES)


def test_a_trace_that_another_asker_has_begun_is_not_given_up() -> None:
    servers = [Server(), Server()]
    servers[1].made.start(servers[1].core, (), 3, BYTES)
    with pytest.raises(ServerError, match="another trace"):
        trace_run([server.ask for server in servers], 3, BYTES, lambda text: None)
    assert not servers[1].core.given_up and servers[0].core.started == []


@pytest.mark.parametrize("recorded", [False, True])
def test_a_trace_whose_asker_has_left_is_forgotten_after_a_while(recorded: bool) -> None:
    clock, core = Clock(), Core()
    members = Membership(1, lambda manifest: core)
    members.tracing = RunTracing(clock)
    members.attach(0, MANIFEST, members.join(0, 1))
    members.tracing.start(core, range(1), 1, BYTES)
    if recorded:
        core.done = b"", 0, 4, 4
        members.tracing.answer(core, (0,), BLOCKS, 0)
    clock.now = 59.0
    look_for_missing(members)
    members.tracing.take(0, sent(1, last=False))
    assert members.tracing._trace is not None and members.tracing._trace.pieces
    clock.now = 60.0
    look_for_missing(members)
    assert members.tracing._trace is None and core.given_up is not recorded
    with pytest.raises(ServerError, match="nobody asked for it for 60 s"):
        members.tracing.answer(core, (0,), BLOCKS, 0)
