"""torch.profiler in a worker's part of a trace: its events on the worker's clock, within bounds, and its failures."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.profiler import record_function

from luwu.control import control_pb2 as pb
from luwu.core import profiling
from luwu.core.profiling import EVENT, Event, Moment, Profile, moment, pack
from luwu.core.trace import RECORD, WorkerRecords, WorkerTrace
from luwu.errors import ServerError
from luwu.observe.profile_tracks import profile_slices
from luwu.session.trace_pieces import trace_pieces
from luwu.worker.profiler import TorchProfiler

AHEAD = 1_000_000
BEGAN, ENDED = Moment(1000, AHEAD, 3), Moment(2000, AHEAD, 5)


def rows_of(profile: Profile) -> list[tuple[int, int, str, str]]:
    """Return (begin, end, name, track) of each event."""
    found = np.frombuffer(profile.events, EVENT).tolist()
    return [(begin, end, profile.names[name], profile.tracks[track]) for begin, end, name, track in found]


def events(*rows: tuple[int, int, str, str]) -> list[Event]:
    """Make events whose times are of the worker's clock."""
    return [Event(begin + AHEAD, end + AHEAD, name, track) for begin, end, name, track in rows]


def test_events_come_to_the_workers_clock_in_the_order_of_their_begins() -> None:
    rows = (1500, 1600, "b", "thread 1"), (1200, 1700, "a", "thread 1"), (1300, 1310, "a", "thread 2")
    profile = pack(events(*rows), 1 << 10, BEGAN, ENDED)
    assert rows_of(profile) == sorted(rows)
    assert (profile.dropped, profile.clock_error_ns, profile.failure) == (0, 5, "")


def test_a_system_clock_that_was_slewed_is_followed_and_counts_as_an_error() -> None:
    ended = Moment(2000, AHEAD + 100, 5)
    (row,) = rows_of(profile := pack([Event(1550 + AHEAD, 2100 + AHEAD, "a", "t")], 1 << 10, BEGAN, ended))
    assert row[:2] == (1500, 2000)
    assert profile.clock_error_ns == 105


def test_events_beyond_the_profile_are_cut_or_dropped() -> None:
    rows = (900, 990, "before", "t"), (900, 1500, "begun before", "t"), (1500, 1 << 40, "never ended", "t")
    profile = pack(events(*rows, (2100, 2200, "after", "t")), 1 << 10, BEGAN, ENDED)
    assert rows_of(profile) == [(1000, 1500, "begun before", "t"), (1500, 2000, "never ended", "t")]
    assert profile.dropped == 2


def test_the_first_events_and_names_stay_and_the_others_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(1000 + at, 1001 + at, f"name {at % 4}", "t") for at in range(10)]
    profile = pack(events(*rows), 6 * EVENT.itemsize + 1, BEGAN, ENDED)
    assert rows_of(profile) == rows[:6] and profile.dropped == 4
    monkeypatch.setattr(profiling, "MOST_NAMES", 2)
    profile = pack(events(*rows, (1100, 1101, "x" * 999, "t")), 1 << 10, BEGAN, ENDED)
    assert profile.names == ["name 0", "name 1"] and len(rows_of(profile)) == 6 and profile.dropped == 5
    (row,) = rows_of(pack(events((1100, 1101, "x" * 999, "t")), 1 << 10, BEGAN, ENDED))
    assert row[2] == "x" * 200


def test_a_moment_has_the_offset_of_the_fastest_look() -> None:
    monotonic = itertools.chain([100, 300], *([1000 * at, 1000 * at + 40] for at in range(1, 8)))
    system = itertools.chain([5000], (7020 + 1000 * at for at in range(1, 8)))
    assert moment(lambda: next(monotonic), lambda: next(system)) == Moment(7040, 7000, 20)


SLACK_NS = 1_000_000
"""Kineto counts cycles between two looks at the system's clock; a look that is held up moves all of them a little."""


@contextmanager
def profiled() -> Iterator[TorchProfiler]:
    """Give a profiler that sees the work of the block."""
    profiler = TorchProfiler(1 << 20)
    yield profiler
    profiler.stop()


def work() -> tuple[int, int]:
    """Do something that torch.profiler sees as ``known``; its begin and its end."""
    begun = time.monotonic_ns()
    with record_function("known"):
        torch.ones(64, 64) @ torch.ones(64, 64)
    return begun, time.monotonic_ns()


def own_profiler() -> torch.profiler.profile:
    """Make a profiler as a user's program has it."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def test_an_event_of_torch_profiler_lies_within_the_span_around_it() -> None:
    with profiled() as profiler:
        spans = [work(), work()]
    profile = profiler.pack()
    assert profile.failure == "" and profile.dropped == 0
    rows = rows_of(profile)
    for (begun, ended), known, product in zip(
        spans, *([row for row in rows if row[2] == name] for name in ("known", "aten::mm")), strict=True
    ):
        assert begun - SLACK_NS <= known[0] <= product[0] <= product[1] <= known[1] <= ended + SLACK_NS
        assert product[3] == f"thread {threading.get_native_id()}"


def test_a_program_that_profiles_already_keeps_its_profiler() -> None:
    with own_profiler() as own, profiled() as profiler:
        work()
    assert "torch.profiler was active already in this worker's program" in profiler.pack().failure
    assert {event.name for event in own.events()} >= {"known", "aten::mm"}


def test_a_profile_that_the_program_ends_says_so() -> None:
    with profiled() as profiler, own_profiler():
        work()
    assert profiler.pack() == Profile(failure="another profiler of this worker's program has ended it")


@pytest.mark.parametrize(("method", "words"), [("start", "could not start"), ("stop", "could not stop")])
def test_an_error_of_torch_profiler_is_the_profiles_failure(
    monkeypatch: pytest.MonkeyPatch, method: str, words: str
) -> None:
    def fail(self: torch.profiler.profile) -> None:
        if method == "stop":
            original(self)
        raise RuntimeError("no more counters")

    original = getattr(torch.profiler.profile, method)
    monkeypatch.setattr(torch.profiler.profile, method, fail)
    with profiled() as profiler:
        work()
    assert profiler.pack() == Profile(failure=f"torch.profiler {words}: RuntimeError('no more counters')")


class Running:
    """A profile that notes when it is stopped."""

    stopped = 0

    def stop(self) -> None:
        self.stopped += 1

    def pack(self) -> Profile:
        return Profile(np.zeros(3, EVENT).tobytes(), ["n"], ["t"], 4, 5)


def test_a_profile_has_all_attempts_of_a_trace() -> None:
    worker, running, asked = WorkerTrace(), Running(), []

    def start() -> Running:
        asked.append(worker.on)
        return running

    worker.begin_attempt(1, 0, False, start)
    assert not asked
    worker.begin_attempt(1, 9, False, start)
    worker.end_attempt()
    worker.begin_attempt(2, 9, True, start)
    assert asked == [False] and not running.stopped
    worker.end_attempt()
    assert running.stopped == 1
    finished = worker.take()
    assert finished is not None and finished.profile is running
    worker.begin_attempt(3, 0, False, start)
    worker.give_up()
    assert running.stopped == 1 and asked == [False]


@pytest.mark.parametrize("by_server", [True, False])
def test_a_trace_that_is_given_up_stops_its_profile(by_server: bool) -> None:
    worker, running = WorkerTrace(), Running()
    worker.begin_attempt(1, 9, False, lambda: running)
    if by_server:
        worker.end_attempt()
        worker.begin_attempt(2, 0, False)
    else:
        worker.give_up()
    assert running.stopped == 1 and not worker.on and worker.take() is None


def test_pieces_have_all_records_and_events_and_the_last_has_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luwu.core.trace.PIECE_ITEMS", 2)
    pieces = list(trace_pieces(WorkerRecords(bytes(3 * RECORD.itemsize), 7, Running()), [(-8, 9), (-10, 3)], ["a"]))
    assert [len(piece.records) for piece in pieces] == [80, 40, 0, 0, 0]
    assert [len(piece.profile.events) for piece in pieces] == [0, 0, 48, 24, 0]
    assert pieces[-1] == pb.TraceRecordsRequest(
        last=True, dropped=7, clock_ns=-8, clock_error_ns=9, blocks=["a"],
        servers=[pb.ClockDifference(clock_ns=2, clock_error_ns=12)],
        profile=pb.Profile(names=["n"], tracks=["t"], dropped=4, clock_error_ns=5),
    )  # fmt: skip
    assert not any(piece.last for piece in pieces[:-1])
    (piece,) = trace_pieces(WorkerRecords(b"", 0, None), [(0, 0)], [])
    assert piece == pb.TraceRecordsRequest(last=True)


def process_of(*rows: tuple[int, int, int, int], clock_ns: int = 0) -> pb.ProcessTrace:
    profile = pb.Profile(
        events=np.array(list(rows), EVENT).tobytes(), names=["a", "b"], tracks=["thread 1", "device 0"]
    )
    return pb.ProcessTrace(name="worker 3", clock_ns=clock_ns, profile=profile)


def test_events_are_tracks_of_their_worker_on_the_servers_clock() -> None:
    found = list(
        profile_slices([pb.ProcessTrace(name="server 1"), process_of((10, 50, 0, 0), (20, 30, 1, 1), clock_ns=5)])
    )
    assert [(each.track, each.name, each.begin, each.end) for each in found] == [
        ("worker 3: torch.profiler, thread 1", "a", 15, 55),
        ("worker 3: torch.profiler, device 0", "b", 25, 35),
    ]


def test_events_that_overlap_lie_on_tracks_beside_each_other() -> None:
    rows = (10, 50, 0, 0), (10, 20, 0, 0), (20, 50, 0, 0), (40, 60, 1, 0), (50, 70, 0, 0), (55, 80, 1, 0)
    found = [(each.begin, each.track.rpartition("thread 1")[2]) for each in profile_slices([process_of(*rows)])]
    assert found == [(10, ""), (10, ""), (20, ""), (40, " (2)"), (50, ""), (55, " (3)")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(EVENT.itemsize - 1), "found a part"),
        (np.array([(1, 2, 2, 0)], EVENT).tobytes(), "found name 2 on track 0"),
        (np.array([(1, 2, 0, 2)], EVENT).tobytes(), "found name 0 on track 2"),
    ],
)
def test_events_of_another_version_are_refused(content: bytes, words: str) -> None:
    process = process_of()
    process.profile.events = content
    with pytest.raises(ServerError, match=words):
        list(profile_slices([process]))
