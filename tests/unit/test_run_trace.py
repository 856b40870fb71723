"""Records of a run become tracks, flows and counters for Perfetto, on the server's clock."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from luwu.control import control_pb2 as pb
from luwu.core import trace
from luwu.core.perfetto import Counter, Flow, Slice, events, write_trace
from luwu.core.profiling import EVENT
from luwu.core.trace import NOBODY, NONE, RECORD, Kind, WorkerTrace, clock_offset
from luwu.errors import ConfigError, ServerError
from luwu.observe.run_trace import make_events, write_run_trace

SOURCE = Path(__file__).parents[2] / "native/trace/recorder.h"
BLOCKS = ("<root>", "layers.0")


def records(*rows: tuple) -> bytes:
    """Make records of (kind, begin, end, step, block, chunk, worker, bytes), the last ones left out at will."""
    defaults = (Kind.READ, 0, 0, 1, NONE, NONE, NOBODY, 0)
    full = [(*row, *defaults[len(row) :]) for row in rows]
    made = [(begin, end, size, step, block, chunk, worker, kind)
            for kind, begin, end, step, block, chunk, worker, size in full]  # fmt: skip
    return np.array(made, RECORD).tobytes()


def run_of(server: bytes, workers: tuple[bytes, ...] = (), *, steps: tuple[int, int] = (1, 1)) -> pb.RunTrace:
    processes = [pb.ProcessTrace(name="server 1", records=server, blocks=BLOCKS)]
    processes += [
        pb.ProcessTrace(name=f"worker {rank}", records=content, blocks=BLOCKS) for rank, content in enumerate(workers)
    ]
    return pb.RunTrace(first_step=steps[0], last_step=steps[1], processes=processes)


ONE_STEP = run_of(
    records(
        (Kind.READ, 1000, 2000, 1, 1, 0, NOBODY, 500),
        (Kind.READ, 1000, 2500, 1, 1, 1, NOBODY, 500),
        (Kind.HAND_OUT, 900, 2600, 1, 1, NONE, 0, 1000),
        (Kind.COLLECT, 5000, 7000, 1, 1, NONE, 0, 1000),
        (Kind.READ_STATES, 5100, 5900, 1, 1, 0, NOBODY, 2000),
        (Kind.READ_STATES, 5100, 6000, 1, 1, 1, NOBODY, 2000),
        (Kind.UPDATE, 6000, 6400, 1, 1, 0),
        (Kind.UPDATE, 6100, 6900, 1, 1, 1),
        (Kind.WRITE, 6400, 7500, 1, 1, 0, NOBODY, 3000),
        (Kind.WRITE, 6900, 8000, 1, 1, 1, NOBODY, 3000),
        (Kind.COMMIT, 8100, 9000, 1),
    ),
    (
        records(
            (Kind.STEP, 500, 8000, 1),
            (Kind.PULL, 800, 2700, 1, 1, NONE, NOBODY, 1000),
            (Kind.FORWARD, 2700, 3500, 1, 1),
            (Kind.BACKWARD, 3600, 4700, 1, 1),
            (Kind.PUSH, 4800, 4900, 1, 1, NONE, NOBODY, 1000),
            (Kind.END, 4950, 7900, 1),
        ),
    ),
)


def test_the_kinds_and_the_layout_are_those_of_native_code() -> None:
    source = SOURCE.read_text()
    enum = source[source.index("enum class Kind") : source.index("inline constexpr")]
    found = {name.upper(): int(number) for name, number in re.findall(r"^    (\w+) = (\d+),", enum, re.MULTILINE)}
    assert found == {kind.name: kind.value for kind in Kind}
    fields = re.findall(r"^    std::uint(\d+)_t (\w+) = ", source[source.index("struct Record {") :], re.MULTILINE)
    names = [(name.removesuffix("_ns"), int(bits) // 8) for bits, name in fields[:7]]
    assert [*names, ("kind", 2)] == [(name, RECORD[name].itemsize) for name in RECORD.names or ()]


def test_a_flow_goes_through_a_blocks_whole_way() -> None:
    flow, *of_chunks = make_events(ONE_STEP).flows
    assert flow.name == "step 1, layers.0, worker 0"
    assert [(track, round(1e9 * at) + 500) for track, at in flow.points] == [
        ("worker 0", 800),
        ("server 1: 2 hand out", 900),
        ("server 1: 1 read", 1000),
        ("worker 0", 2700),
        ("worker 0", 3600),
        ("worker 0", 4800),
        ("server 1: 3 collect", 5000),
        ("server 1: 4 read states", 5100),
        ("server 1: 5 update (2)", 6100),
        ("server 1: 6 write (2)", 6900),
        ("server 1: commit", 8100),
    ]
    assert [flow.name for flow in of_chunks] == ["step 1, layers.0, chunk 0", "step 1, layers.0, chunk 1"]
    assert [(track, round(1e9 * at) + 500) for track, at in of_chunks[0].points] == [
        ("server 1: 1 read (2)", 1000),
        ("server 1: 4 read states (2)", 5100),
        ("server 1: 5 update", 6000),
        ("server 1: 6 write", 6400),
        ("server 1: commit", 8100),
    ]


def test_each_span_of_a_chunk_is_in_a_way() -> None:
    made = make_events(ONE_STEP)
    points = {(track, at) for flow in made.flows for track, at in flow.points}
    assert [each for each in made.slices if "chunk" in each.details and (each.track, each.start) not in points] == []


def test_tracks_are_the_servers_steps_and_then_the_workers() -> None:
    many = tuple(records((Kind.STEP, 1, 2, 1)) for _ in range(11))
    tracks = make_events(run_of(ONE_STEP.processes[0].records, many)).tracks
    assert [track for track in tracks if track.startswith("server")] == [
        "server 1: 1 read",
        "server 1: 1 read (2)",
        "server 1: 2 hand out",
        "server 1: 3 collect",
        "server 1: 4 read states",
        "server 1: 4 read states (2)",
        "server 1: 5 update",
        "server 1: 5 update (2)",
        "server 1: 6 write",
        "server 1: 6 write (2)",
        "server 1: commit",
    ]
    assert tracks[11:] == [f"worker {rank}" for rank in range(11)]


def test_slices_tell_their_block_and_lie_beside_each_other_or_within() -> None:
    made = make_events(ONE_STEP)
    names = {(each.track, each.name) for each in made.slices}
    assert ("server 1: 1 read", "layers.0") in names
    assert {name for track, name in names if track == "worker 0"} == {
        "step 1", "pull layers.0", "forward layers.0", "backward layers.0", "push layers.0", "end of step",
    }  # fmt: skip
    update = next(each for each in made.slices if each.track == "server 1: 6 write")
    assert update.details == {"step": 1, "block": "layers.0", "chunk": 0, "bytes": 3000}
    assert_nested(made.slices)


def assert_nested(slices: list[Slice]) -> None:
    """Check that the slices of each track lie one after the other, or within each other."""
    open_ends: dict[str, list[float]] = {}
    for each in sorted(slices, key=lambda found: (found.track, found.start, -found.end)):
        ends = open_ends.setdefault(each.track, [])
        while ends and ends[-1] <= each.start + 1e-12:
            ends.pop()
        assert not ends or each.end <= ends[-1] + 1e-12, f"{each} overlaps another"
        ends.append(each.end)


def test_a_block_on_several_servers_has_a_way_through_each() -> None:
    run = run_of(
        records(
            (Kind.READ, 10, 20, 1, 1, 0, NOBODY, 40), (Kind.HAND_OUT, 25, 26, 1, 1, NONE, 0), (Kind.COMMIT, 90, 95, 1)
        ),
        (records((Kind.PULL, 5, 40, 1, 1)),),
    )
    other = records(
        (Kind.HAND_OUT, 30, 31, 1, 0, NONE, 0), (Kind.WRITE, 50, 60, 1, 0, 0, NOBODY, 80), (Kind.COMMIT, 97, 99, 1)
    )
    run.processes.add(name="server 2", records=other, blocks=["layers.0"], clock_ns=2)
    made = make_events(run)
    assert {flow.name: [(track, round(1e9 * at) + 5) for track, at in flow.points] for flow in made.flows} == {
        "step 1, layers.0, worker 0, server 1": [
            ("worker 0", 5), ("server 1: 1 read", 10), ("server 1: 2 hand out", 25), ("server 1: commit", 90),
        ],
        "step 1, layers.0, worker 0, server 2": [
            ("worker 0", 5), ("server 2: 2 hand out", 32), ("server 2: 6 write", 52), ("server 2: commit", 99),
        ],
    }  # fmt: skip
    assert made.tracks == [
        "server 1: 1 read", "server 1: 2 hand out", "server 1: commit",
        "server 2: 2 hand out", "server 2: 6 write", "server 2: commit", "worker 0",
    ]  # fmt: skip
    assert {counter.name for counter in made.counters} == {"server 1: disk MB/s", "server 2: disk MB/s"}


def switched_run() -> pb.RunTrace:
    """Make a run over UDP of two steps, whose worker pushes through a switch that knows no steps."""
    server = records(
        *((Kind.COLLECT, 1000 * step + 50, 1000 * step + 70, step, 1) for step in (1, 2)), (Kind.COMMIT, 2080, 2090, 2)
    )
    worker = records(
        *((Kind.STEP, 1000 * step, 1000 * step + 500, step) for step in (1, 2)),
        *((Kind.PUSH, 1000 * step + 10, 1000 * step + 20, step, 1) for step in (1, 2)),
    )
    sums = records(*((Kind.SUM, begin, begin + 30, 0, 1, NONE, NOBODY, 64) for begin in (30, 1030, 2030, 2600)))
    quicker = records(*((Kind.STEP, 1000 * step + 5, 1000 * step + 25, step) for step in (1, 2)))
    run = run_of(server, (worker, quicker), steps=(1, 2))
    packets = [pb.PacketCounts(at_ns=at, came=at, sent=2, resent=3) for at in (1000, 2000)]
    run.processes.add(name="switch a", server="server 1", records=sums, blocks=BLOCKS, packets=packets, clock_ns=2)
    return run


def test_a_switchs_sums_are_in_the_ways_of_their_blocks_in_the_steps_of_their_time() -> None:
    made = make_events(switched_run())
    assert made.tracks == ["server 1: 3 collect", "server 1: commit", "switch a: sums", "worker 0", "worker 1"]
    sums = [each for each in made.slices if each.track == "switch a: sums"]
    assert [(each.name, each.details["step"], round(1e9 * each.start)) for each in sums] == [
        ("layers.0", 1, 32), ("layers.0", 2, 1032),
    ]  # fmt: skip
    for flow in made.flows:
        assert [track for track, _ in flow.points] == [
            "worker 0", "switch a: sums", "server 1: 3 collect", "server 1: commit",
        ], flow.name  # fmt: skip
    assert len(made.flows) == 2


def test_a_switch_counts_its_packets() -> None:
    run = switched_run()
    counters = [each for each in make_events(run).counters if each.name == "packets"]
    assert [each.values["received"] for each in counters] == [0, 1000]
    run.processes[0].packets.add(at_ns=1000)
    assert {each.name for each in make_events(run).counters} == {"server 1: packets", "switch a: packets"}


def test_switches_stand_between_servers_and_workers_by_their_names() -> None:
    run = switched_run()
    for name in ("switch b: (2)", "switch a of server 2"):
        run.processes.add().CopyFrom(run.processes[3])
        run.processes[-1].name = name
    assert make_events(run).tracks[2:] == [
        "switch a of server 2: sums", "switch a: sums", "switch b: (2): sums", "worker 0", "worker 1",
    ]  # fmt: skip


def test_a_block_that_is_read_twice_in_a_step_has_both_reads_in_its_way() -> None:
    server = records(
        (Kind.READ, 10, 20, 1, 1, 0), (Kind.HAND_OUT, 25, 26, 1, 1, NONE, 0),
        (Kind.READ, 50, 60, 1, 1, 0), (Kind.HAND_OUT, 65, 66, 1, 1, NONE, 0),
    )  # fmt: skip
    (flow,) = make_events(run_of(server)).flows
    assert [track.removeprefix("server 1: ") for track, _ in flow.points] == [
        "1 read", "2 hand out", "1 read", "2 hand out",
    ]  # fmt: skip


def test_a_commit_point_ends_the_ways_of_all_steps_since_the_one_before() -> None:
    server = records(
        *((Kind.HAND_OUT, 10 * step, 10 * step + 1, step, 0, NONE, 0) for step in (1, 2, 3)),
        (Kind.COMMIT, 25, 28, 2),
    )
    flows = make_events(run_of(server, steps=(1, 3))).flows
    assert [(flow.name, round(1e9 * flow.points[-1][1]) + 10) for flow in flows] == [
        ("step 1, <root>, worker 0", 25),
        ("step 2, <root>, worker 0", 25),
    ]


def test_steps_before_and_after_are_left_out() -> None:
    server = records((Kind.UPDATE, 1, 2, 4, 0, 0), (Kind.UPDATE, 3, 4, 5, 0, 0), (Kind.UPDATE, 5, 6, 6, 0, 0))
    assert [each.details["step"] for each in make_events(run_of(server, steps=(5, 5))).slices] == [5]


def test_workers_times_are_brought_to_the_servers_clock() -> None:
    run = run_of(records((Kind.COMMIT, 1000, 2000, 1)), (records((Kind.STEP, 200, 300, 1)),))
    run.processes[1].clock_ns = 1100
    run.processes[1].clock_error_ns = 40
    made = make_events(run)
    step = next(each for each in made.slices if each.name == "step 1" and each.track == "worker 0")
    assert (step.start, step.end) == (pytest.approx(300e-9), pytest.approx(400e-9))
    assert made.about["clock error in nanoseconds"] == {"server 1": 0, "worker 0": 40}


def test_a_profile_is_tracks_behind_its_workers_own() -> None:
    many = tuple(records((Kind.STEP, 1000, 2000, 1)) for _ in range(3))
    run = run_of(records((Kind.COMMIT, 1000, 2000, 1)), many)
    events = np.array([(700, 800, 0, 1), (900, 1000, 0, 0)], EVENT).tobytes()
    run.processes[2].profile.CopyFrom(
        pb.Profile(events=events, names=["aten::mm"], tracks=["thread 7", "device 0"], dropped=3, clock_error_ns=2)
    )
    made = make_events(run)
    assert made.tracks == [
        "server 1: commit", "worker 0", "worker 1", "worker 1: torch.profiler, device 0",
        "worker 1: torch.profiler, thread 7", "worker 2",
    ]  # fmt: skip
    found = [each for each in made.slices if each.name == "aten::mm"]
    assert [(round(1e9 * each.start), round(1e9 * each.end)) for each in found] == [(0, 100), (200, 300)]
    assert made.about["torch.profiler"] == {
        "worker 1": {"clock error in nanoseconds": 2, "events without room": 3, "failure": ""}
    }


def test_a_server_that_has_some_of_the_blocks_in_another_order() -> None:
    run = run_of(records((Kind.UPDATE, 1, 2, 1, 0, 0)), (records((Kind.FORWARD, 1, 2, 1, 1)),))
    run.processes[0].ClearField("blocks")
    run.processes[0].blocks.extend(["layers.0"])
    assert {each.name for each in make_events(run).slices} == {"layers.0", "forward layers.0"}


def test_a_servers_other_work_on_a_block_is_named_beside_the_block() -> None:
    server = records((Kind.CHECKSUM, 1, 2, 1, 1, 0), (Kind.READ_KEPT, 1, 2, 1, 0, 0), (Kind.COPY_RECORD, 3, 4, 1, 1, 0))
    assert {each.name for each in make_events(run_of(server)).slices} == {
        "checksum of layers.0", "gradient of <root>", "copy of layers.0",
    }  # fmt: skip


def test_the_disks_rates_are_of_all_bytes_that_they_moved() -> None:
    made = make_events(ONE_STEP)
    times = [1e9 * counter.time for counter in made.counters]
    widths = np.diff(times)
    for name, expected in (("read", 5000), ("written", 6000)):
        rates = np.array([counter.values[name] for counter in made.counters[:-1]])
        assert (rates * widths).sum() / 1e3 == pytest.approx(expected, rel=0.01)
    assert made.counters[-1].values == {"read": 0.0, "written": 0.0}


def test_packets_are_counted_from_the_begin_of_the_trace() -> None:
    run = run_of(records((Kind.STEP, 1000, 9000, 1)))
    for at, came, sent, resent in ((1000, 10, 20, 5), (3000, 14, 26, 6)):
        run.processes[0].packets.add(at_ns=at, came=came, sent=sent, resent=resent)
    counters = [counter for counter in make_events(run).counters if counter.name == "packets"]
    assert [round(1e9 * counter.time) for counter in counters] == [0, 2000]
    assert [counter.values for counter in counters] == [
        {"received": 0, "sent": 0, "sent again": 0},
        {"received": 4, "sent": 6, "sent again": 1},
    ]


def test_a_run_without_records_is_an_empty_trace() -> None:
    made = make_events(run_of(b""))
    assert not made.slices and not made.flows and not made.counters


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes(RECORD.itemsize - 1), "expected records of 40 bytes from server 1, found a part"),
        (records((99, 1, 2)), "found kind 99 of block 4294967295"),
        (records((Kind.READ, 1, 2, 1, 2)), "found kind 1 of block 2"),
    ],
)
def test_records_of_another_version_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(ServerError, match=re.escape(words)):
        make_events(run_of(content))


def test_events_have_chromes_format(tmp_path: Path) -> None:
    flow = Flow("way", [("a", 1e-6), ("b", 2e-6), ("a", 3e-6)])
    found = events("run", ["a", "b"], [Slice("a", "x", 1e-6, 4e-6, {"n": 1})], [flow], [Counter("c", 0.0, {"v": 2.0})])
    assert [event["ph"] for event in found] == ["M", "M", "M", "M", "M", "X", "s", "t", "f", "C"]
    assert (found[0]["name"], found[0]["args"]) == ("process_name", {"name": "run"})
    assert found[5] == {"name": "x", "ph": "X", "pid": 1, "tid": 1, "ts": 1.0, "dur": 3.0, "args": {"n": 1}}
    assert [(event["tid"], event["ts"], event["id"]) for event in found[6:9]] == [(1, 1.0, 1), (2, 2.0, 1), (1, 3.0, 1)]
    path = tmp_path / "trace.json.gz"
    write_trace(path, "run", ["a"], [Slice("a", "x", 0.0, 1.0)], about={"fact": 3})
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document["otherData"] == {"fact": 3}
    assert len(document["traceEvents"]) == 4


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"output: .*nowhere/x\.json: cannot be written"):
        write_run_trace(ONE_STEP, tmp_path / "nowhere" / "x.json", "first")


def test_a_worker_records_the_attempts_that_are_asked_for() -> None:
    worker = WorkerTrace()
    worker.begin_attempt(4, 0, False)
    assert worker.begin() == 0
    worker.end(Kind.PULL, worker.begin(), 1)
    worker.end_attempt()
    worker.begin_attempt(5, 10, False)
    worker.end(Kind.PULL, worker.begin(), 1, 16)
    worker.end_attempt()
    assert not worker.on and worker.take() is None
    worker.begin_attempt(6, 10, True)
    worker.end(Kind.PUSH, worker.begin(), 2)
    worker.end_attempt()
    content, dropped, profile = worker.take() or (b"", -1, None)
    found = np.frombuffer(content, RECORD)
    assert dropped == 0 and profile is None and worker.take() is None
    assert [tuple(row) for row in found[["kind", "step", "block", "bytes", "chunk", "worker"]].tolist()] == [
        (Kind.PULL, 5, 1, 16, NONE, NOBODY),
        (Kind.STEP, 5, NONE, 0, NONE, NOBODY),
        (Kind.PUSH, 6, 2, 0, NONE, NOBODY),
        (Kind.STEP, 6, NONE, 0, NONE, NOBODY),
    ]
    assert (found["begin"] <= found["end"]).all()


def test_a_worker_forgets_a_trace_that_was_given_up() -> None:
    worker = WorkerTrace()
    worker.begin_attempt(1, 2, False)
    worker.end_attempt()
    worker.begin_attempt(2, 0, False)
    worker.begin_attempt(3, 2, True)
    worker.end_attempt()
    content, dropped, _ = worker.take() or (b"", -1, None)
    assert np.frombuffer(content, RECORD)["step"].tolist() == [3] and dropped == 0


def test_the_clocks_offset_is_the_middle_of_the_fastest_round() -> None:
    assert clock_offset([(100, 1000, 300), (400, 1250, 420), (500, 1500, 600)]) == (840, 10)
    assert trace.clock_offset([(10, 5, 10)]) == (-5, 0)
