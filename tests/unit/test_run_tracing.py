"""A trace of a run: begun once, put together from the server's records and its workers', and fetched piece by piece."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import pytest

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import TIMEOUTS
from luwu.control.tracing import join_servers, trace_run
from luwu.core.trace import RECORD
from luwu.errors import ConfigError, ServerError
from luwu.server import tracing
from luwu.server.tracing import RunTracing

BYTES = 1 << 20
BLOCKS = ["a", "b"]


class Core:
    """A native server whose trace is done when a test says so."""

    initialised = True

    def __init__(self) -> None:
        self.started: list[tuple[int, int, int]] = []
        self.given_up = False
        self.ended = False
        self.done: tuple[bytes, int, int, int] | None = None
        self.step = 3

    def failure(self) -> None:
        return None

    def end_trace(self) -> None:
        self.ended = True

    def give_trace_up(self) -> None:
        self.given_up = True

    def start_trace(self, attempts: int, most_records: int, most_of_worker: int) -> None:
        assert not self.started or self.given_up or self.done is not None
        self.started.append((attempts, most_records, most_of_worker))

    def take_trace(self) -> tuple[bytes, int, int, int] | None:
        return self.done

    def stats(self) -> dict[str, Any]:
        return {"step": self.step, "network": {"packets_in": 5, "packets_out": 7, "resent": 1}}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def sent(count: int, last: bool = True, step: int = 4, **fields: int) -> pb.TraceRecordsRequest:
    """Make a message with records of a step."""
    records = np.zeros(count, RECORD)
    records["step"] = step
    return pb.TraceRecordsRequest(records=records.tobytes(), last=last, blocks=BLOCKS * last, **fields)


def begun(workers: int, clock: Clock | None = None) -> tuple[RunTracing, Core]:
    made, core = RunTracing(clock or Clock()), Core()
    made.start(core, range(workers), 3, BYTES)
    return made, core


def test_a_trace_has_the_servers_records_and_those_of_all_workers() -> None:
    made, core = begun(2)
    assert core.started == [(3, BYTES // RECORD.itemsize, BYTES // 2 // RECORD.itemsize)] and made.under_way
    assert made.answer(core, (0, 1), BLOCKS, 0) == pb.TraceReply(waits_for="the run's next steps")
    core.done = bytes(RECORD.itemsize), 7, 4, 6
    made.take(0, sent(2, last=False))
    assert made.answer(core, (0, 1), BLOCKS, 0).waits_for == "the records of 2 workers"
    assert not made.under_way
    made.take(0, sent(1, dropped=9, clock_ns=-5, clock_error_ns=2))
    assert made.answer(core, (0, 1), BLOCKS, 0).waits_for == "the records of 1 worker"
    made.take(1, sent(0))
    reply = made.answer(core, (0, 1), BLOCKS, 0)
    assert reply.done and reply.size == len(reply.content)
    size = RECORD.itemsize
    found = pb.RunTrace.FromString(reply.content)
    (packets,) = found.processes[0].packets
    assert (packets.came, packets.sent, packets.resent) == (5, 7, 1) and packets.at_ns > 0
    found.processes[0].ClearField("packets")
    assert found == pb.RunTrace(
        first_step=4,
        last_step=6,
        processes=[
            pb.ProcessTrace(name="server 1", records=bytes(size), dropped=7, blocks=BLOCKS),
            pb.ProcessTrace(
                name="worker 0", records=sent(3).records, dropped=9, clock_ns=-5, clock_error_ns=2, blocks=BLOCKS
            ),
            pb.ProcessTrace(name="worker 1", blocks=BLOCKS),
        ],
    )


def test_a_trace_does_not_wait_for_workers_that_are_gone_or_late() -> None:
    clock = Clock()
    made, core = begun(3, clock)
    core.done = b"", 0, 1, 1
    made.take(0, sent(1))
    made.take(1, sent(1, last=False))
    assert made.answer(core, (0, 1), BLOCKS, 0).waits_for == "the records of 1 worker"
    clock.now = TIMEOUTS.trace_records_seconds
    found = pb.RunTrace.FromString(made.answer(core, (0, 1), BLOCKS, 0).content)
    assert [process.name for process in found.processes] == ["server 1", "worker 0"]
    assert found.missing == ["worker 1", "worker 2"]


def test_records_that_nobody_waits_for_are_dropped_and_wrong_ones_refused() -> None:
    RunTracing().take(0, sent(1))
    made, core = begun(1)
    with pytest.raises(ConfigError, match="multiple of 40 bytes, found 3"):
        made.take(0, pb.TraceRecordsRequest(records=b"abc"))
    with pytest.raises(ConfigError, match=f"at most {BYTES} bytes"):
        made.take(0, sent(BYTES // RECORD.itemsize + 1))
    made.take(0, sent(1))
    made.take(5, sent(1))
    core.done = b"", 0, 1, 1
    found = pb.RunTrace.FromString(made.answer(core, (0,), BLOCKS, 0).content)
    assert [process.name for process in found.processes] == ["server 1"]


@pytest.mark.parametrize(
    ("steps", "most_bytes", "words"),
    [
        (0, BYTES, "steps: expected 1 to 1000, found 0"),
        (1001, BYTES, "steps: expected 1 to 1000, found 1001"),
        (1, 100, "limit: expected 65536 to 1073741824 bytes, found 100"),
        (1, 1 << 40, "limit: expected 65536"),
    ],
)
def test_numbers_out_of_their_range_are_refused(steps: int, most_bytes: int, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        RunTracing().start(Core(), range(1), steps, most_bytes)


def test_a_profile_takes_half_of_the_workers_bytes_and_comes_with_the_records() -> None:
    made, core = RunTracing(Clock()), Core()
    made.start(core, range(2), 3, BYTES, 1)
    assert core.started == [(3, BYTES // RECORD.itemsize, BYTES // 4 // RECORD.itemsize)]
    assert (made.profile_bytes(0), made.profile_bytes(1)) == (0, BYTES // 2)
    made.take(1, sent(2, last=False))
    for content in (b"ab", b"cd"):
        made.take(1, pb.TraceRecordsRequest(profile=pb.Profile(events=content)))
    made.take(1, pb.TraceRecordsRequest(last=True, profile=pb.Profile(names=["n"], dropped=3)))
    made.take(0, sent(1))
    core.done = b"", 0, 1, 3
    found = pb.RunTrace.FromString(made.answer(core, (0, 1), BLOCKS, 0).content)
    assert found.processes[2].profile == pb.Profile(events=b"abcd", names=["n"], dropped=3)
    assert not found.processes[1].HasField("profile") and made.profile_bytes(1) == 0


def test_a_profile_that_nobody_asked_for_or_that_is_too_large_is_refused() -> None:
    made, core = RunTracing(Clock()), Core()
    made.start(core, range(2), 3, BYTES, 1)
    with pytest.raises(ConfigError, match="profile: expected at most 0 bytes, found more"):
        made.take(0, pb.TraceRecordsRequest(profile=pb.Profile(events=b"a")))
    most = BYTES // 2 + (1 << 20)
    with pytest.raises(ConfigError, match=f"profile: expected at most {most} bytes"):
        made.take(1, pb.TraceRecordsRequest(profile=pb.Profile(events=bytes(most))))
    core.done = b"", 0, 1, 3
    found = pb.RunTrace.FromString(made.answer(core, (0, 1), BLOCKS, 0).content)
    assert [process.name for process in found.processes] == ["server 1"]


@pytest.mark.parametrize(
    ("steps", "profiled", "words"),
    [
        (21, 0, "steps: expected 1 to 20 with a profile, found 21"),
        (1, 2, "profile-worker: expected 0 to 1, found 2"),
    ],
)
def test_a_profile_of_too_many_steps_or_of_no_worker_is_refused(steps: int, profiled: int, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        RunTracing().start(Core(), range(2), steps, BYTES, profiled)


class Switch:
    """A switch of a server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[int] = []

    def tell(self, event: pb.Event) -> None:
        assert event.HasField("trace")
        self.told.append(event.trace.records)


def test_switches_are_told_of_a_trace_and_send_records_as_workers_do() -> None:
    clock = Clock()
    made, core, switches = RunTracing(clock), Core(), [Switch("switch b"), Switch("switch a")]
    made.start(core, range(2), 3, BYTES, None, switches)
    records = BYTES // 4 // RECORD.itemsize
    assert core.started == [(3, BYTES // RECORD.itemsize, records)]
    assert [switch.told for switch in switches] == [[records], [records]]
    core.done = b"", 0, 1, 3
    present = (0, 1, "switch a", "switch b")
    assert made.answer(core, present, BLOCKS, 0).waits_for == "the records of 2 workers and 2 switches"
    assert [switch.told for switch in switches] == [[records, 0], [records, 0]]
    for rank in range(2):
        made.take(rank, sent(1))
    assert made.answer(core, present, BLOCKS, 0).waits_for == "the records of 2 switches"
    packets = [pb.PacketCounts(at_ns=3, came=4)]
    made.take("switch b", pb.TraceRecordsRequest(records=bytes(40), last=True, packets=packets, clock_ns=-3))
    assert made.answer(core, present, BLOCKS, 0).waits_for == "the records of 1 switch"
    clock.now = TIMEOUTS.trace_records_seconds
    found = pb.RunTrace.FromString(made.answer(core, present, BLOCKS, 0).content)
    assert [process.name for process in found.processes] == ["server 1", "worker 0", "worker 1", "switch b"]
    assert found.processes[3] == pb.ProcessTrace(
        name="switch b", records=bytes(40), packets=packets, clock_ns=-3, blocks=BLOCKS, server="server 1"
    )
    assert found.missing == ["switch a"]
    assert [switch.told for switch in switches] == [[records, 0], [records, 0]]


def test_switches_of_other_servers_are_named_by_them() -> None:
    other = run_of(1, 9)
    other.processes.add(name="switch a", server="server 1", clock_ns=4, clock_error_ns=5)
    other.missing.append("switch b")
    found = join_servers(run_of(1, 9, (6, 20)), [other])
    assert found.processes[-1] == pb.ProcessTrace(
        name="switch a of server 2", server="server 2", clock_ns=10, clock_error_ns=25
    )
    assert found.missing == ["switch b of server 2"]


def test_one_trace_at_a_time() -> None:
    clock = Clock()
    made, core = begun(1, clock)
    clock.now = 9.0
    made.answer(core, (0,), BLOCKS, 0)
    clock.now = 18.0
    with pytest.raises(ServerError, match="another trace of this run is under way"):
        made.start(core, range(1), 1, BYTES)
    assert not core.given_up
    clock.now = 19.0
    made.start(core, range(1), 1, BYTES)  # nobody waits for the other one
    assert core.given_up and len(core.started) == 2
    with pytest.raises(
        ServerError, match="its run has ended, another trace took its place, or nobody asked for it for 60 s"
    ):
        RunTracing().answer(core, (), BLOCKS, 0)


def test_the_asker_waits_and_fetches_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "PIECE_BYTES", 16)
    made, core = RunTracing(), Core()
    said: list[str] = []
    waits: list[float] = []

    def ask(request: pb.TraceRequest) -> pb.TraceReply:
        if request.steps:
            made.start(core, range(1), request.steps, request.most_bytes)
            return pb.TraceReply(waits_for="the run's next steps")
        return made.answer(core, (0,), BLOCKS, request.offset)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            core.done = bytes(10 * RECORD.itemsize), 0, 1, 2
        if len(waits) == 3:
            made.take(0, sent(1))

    found = trace_run([ask], 2, BYTES, said.append, wait)
    assert said == ["waiting for the run's next steps", "waiting for the records of 1 worker"]
    assert [len(process.records) for process in found.processes] == [400, 40]


class Servers:
    """Servers of one job, in whose traces all steps have ended when the first one was looked at often enough."""

    def __init__(self, looks: int) -> None:
        self.said: list[str] = []
        self._looks = looks
        self._found = [
            pb.RunTrace(first_step=4, last_step=6, processes=[
                pb.ProcessTrace(name="server 1"),
                pb.ProcessTrace(name="worker 0", servers=[pb.ClockDifference(clock_ns=-9, clock_error_ns=7)]),
            ]),
            pb.RunTrace(first_step=3, last_step=8, processes=[pb.ProcessTrace(name="server 1", records=b"second")]),
        ]  # fmt: skip

    def ask(self, number: int, request: pb.TraceRequest) -> pb.TraceReply:
        if request.steps:
            what = f"begins {request.steps}{' alone' * request.alone}"
        else:
            what = "ends" if request.end else "is asked"
        self.said.append(f"{number} {what}")
        self._looks -= number == 0
        waits_for_end = number == 1 and self.said.count("1 is asked") < 3
        if request.steps or self._looks > 0 or waits_for_end:
            return pb.TraceReply(waits_for="the run's next steps")
        content = self._found[number].SerializeToString()
        return pb.TraceReply(done=True, size=len(content), content=content)


def test_other_servers_begin_before_the_first_and_end_after_it() -> None:
    servers, said = Servers(3), []
    asks = [functools.partial(servers.ask, number) for number in range(2)]
    found = trace_run(asks, 3, BYTES, said.append, lambda seconds: None)
    assert servers.said == [
        "1 begins 1000 alone", "0 begins 3", "1 is asked", "0 is asked", "1 is asked", "0 is asked",
        "1 ends", "1 is asked",
    ]  # fmt: skip
    assert said == ["waiting for the run's next steps", "waiting for the other servers"]
    assert (found.first_step, found.last_step) == (4, 6)
    assert [process.name for process in found.processes] == ["server 1", "worker 0", "server 2"]
    assert found.processes[2] == pb.ProcessTrace(name="server 2", records=b"second", clock_ns=-9, clock_error_ns=7)


def run_of(first: int, last: int, *clocks: tuple[int, int]) -> pb.RunTrace:
    """Make a trace of a server and of a worker for each clock of a second server."""
    workers = [
        pb.ProcessTrace(name="worker", servers=[pb.ClockDifference(clock_ns=clock, clock_error_ns=error)])
        for clock, error in clocks
    ]
    return pb.RunTrace(first_step=first, last_step=last, processes=[pb.ProcessTrace(name="server 1"), *workers])


def test_the_clock_of_another_server_is_the_best_that_a_worker_knows() -> None:
    found = join_servers(run_of(1, 9, (5, 30), (6, 20), (7, 40)), [run_of(1, 9)])
    assert (found.processes[-1].name, found.processes[-1].clock_ns) == ("server 2", 6)
    assert found.processes[-1].clock_error_ns == 20


@pytest.mark.parametrize(
    ("other", "clocks", "steps", "missing"),
    [
        ((2, 9), [(0, 1)], (4, 6), []),
        ((5, 9), [(0, 1)], (5, 6), []),
        ((2, 5), [(0, 1)], (4, 5), []),
        ((7, 9), [(0, 1)], (4, 6), ["server 2"]),
        ((4, 6), [], (4, 6), ["server 2"]),
    ],
)
def test_the_trace_has_the_steps_that_all_servers_have(
    other: tuple[int, int], clocks: list[tuple[int, int]], steps: tuple[int, int], missing: list[str]
) -> None:
    found = join_servers(run_of(4, 6, *clocks), [run_of(*other)])
    assert (found.first_step, found.last_step) == steps and found.missing == missing
    assert (found.processes[-1].name == "server 2") is not bool(missing)


def test_a_trace_is_ended_once_it_has_begun() -> None:
    core = Core()
    RunTracing().end(core)
    assert not core.ended
    made, core = begun(0)
    made.end(core)
    assert core.ended
    core.done = b"", 0, 1, 1
    assert made.answer(core, (0, 1), BLOCKS, 0).done


def test_a_trace_that_is_cut_off_or_none_is_an_error() -> None:
    replies = iter(
        [pb.TraceReply(done=True, size=9, content=b"abc"), pb.TraceReply(done=True, size=9), pb.TraceReply()]
    )
    with pytest.raises(ServerError, match="expected 9 bytes, found an end after 3"):
        trace_run([lambda request: next(replies)], 1, BYTES, lambda text: None)
    with pytest.raises(ServerError, match="a trace of this version"):
        trace_run([lambda request: pb.TraceReply(done=True, size=1, content=b"\xff")], 1, BYTES, lambda text: None)
