"""`luwu trace` of a run of `luwu train` that is under way: every block's way through every step, and nothing twice."""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.network import KEY
from tests.integration.udp import CREDENTIALS, QUICK, udp_server, udp_switch
from tests.unit.test_run_trace import assert_nested
from torch._C._autograd import _profiler_enabled

import luwu
from harness.network.namespaces import wait_until
from harness.training import finish, metrics, prepare_small_run, start, start_small_run, wait_for_steps
from luwu.control import control_pb2 as pb
from luwu.control.credentials import Credentials
from luwu.control.tracing import ask_at, trace_run
from luwu.core.perfetto import Slice
from luwu.errors import AuthenticationError
from luwu.observe.run_trace import make_events
from luwu.session.remote import connect

STEPS = 3
WORKERS = 2


def stages_of(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the stages of each flow by its name: the tracks of a server, the names of a worker's spans."""
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["tid"]].append(event)
    found = defaultdict(list)
    for event in events:
        if event["ph"] not in "stf":
            continue
        around = [each for each in slices[event["tid"]] if each["ts"] <= event["ts"] <= each["ts"] + each["dur"]]
        inner = max(around, key=lambda each: (each["ts"], -each["dur"]))
        track = tracks[event["tid"]].partition(" (")[0]
        stage = track.partition(": ")[2] or inner["name"].partition(" ")[0]
        if not found[event["name"]] or found[event["name"]][-1] != stage:
            found[event["name"]].append(stage)
    return dict(found)


@pytest.mark.timeout(300)
def test_a_run_is_traced_while_it_trains(tmp_path: Path) -> None:
    prepare_small_run(tmp_path, workers=WORKERS)
    process = start_small_run(tmp_path, "run", "--steps", "400", "--layers", "12", "--hidden", "64", "--memory", "4MiB")
    try:
        wait_for_steps(tmp_path, "run", 2)
        flags = ("--steps", str(STEPS), "--output", "t.json", "--profile-worker", "1")
        code, output, error = finish(start(tmp_path, "trace", "run", *flags))
        assert code == 0, error
        assert "t.json: steps " in output and "open it at ui.perfetto.dev" in output
        assert error.startswith("waiting for the run's next steps\n") and "torch.profiler" not in error
    finally:
        process.terminate()
        finish(process)
    document = json.loads((tmp_path / "t.json").read_text())
    events, about = document["traceEvents"], document["otherData"]
    assert about["records that did not come"] == [] and set(about["records without room"].values()) == {0}
    first, last = about["first step"], about["last step"]
    assert last - first == STEPS - 1
    check_tracks(events)
    check_ways(events, range(first, last + 1))
    check_sums(tmp_path, events, first, last)
    check_profile(events, about, range(first, last + 1))


def check_profile(events: list[dict[str, Any]], about: dict[str, Any], steps: range) -> None:
    """Check that worker 1 alone has events of torch.profiler, and that they lie in the spans of their work."""
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    profiled = {name for name in tracks.values() if "torch.profiler" in name}
    assert profiled and all(name.startswith("worker 1: torch.profiler, thread ") for name in profiled)
    assert about["torch.profiler"]["worker 1"]["failure"] == ""
    slices = [event for event in events if event["ph"] == "X"]
    products = [
        event for event in slices if event["name"] in ("aten::mm", "aten::addmm") and tracks[event["tid"]] in profiled
    ]
    spans = [
        event
        for event in slices
        if tracks[event["tid"]] == "worker 1" and event["name"].startswith(("forward", "backward", "step"))
    ]
    slack = 1000.0  # microseconds
    for step in steps:
        (whole,) = [event for event in spans if event["name"] == f"step {step}"]
        assert any(whole["ts"] <= event["ts"] <= whole["ts"] + whole["dur"] for event in products)
    for product in products:
        assert any(
            span["ts"] - slack <= product["ts"] and product["ts"] + product["dur"] <= span["ts"] + span["dur"] + slack
            for span in spans
            if span["name"].startswith(("forward", "backward"))
        ), product


def check_tracks(events: list[dict[str, Any]]) -> None:
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"worker 0", "worker 1"} <= set(tracks.values())
    slices = [
        Slice(tracks[event["tid"]], event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["ph"] == "X"
    ]
    assert_nested(slices)


def check_ways(events: list[dict[str, Any]], steps: range) -> None:
    """Check that each block's way is complete, for each worker, in each step."""
    ways = {name: stages for name, stages in stages_of(events).items() if ", worker " in name}
    blocks = {name.split(", ")[1] for name in ways}
    assert len(blocks) >= 3
    assert set(ways) == {
        f"step {step}, {block}, worker {rank}" for step in steps for block in blocks for rank in range(WORKERS)
    }
    for name, stages in ways.items():
        expected = {"pull", "2 hand out", "push", "3 collect", "5 update", "6 write", "commit"}
        assert expected <= set(stages), f"{name}: {stages}"
        if "<root>" not in name:
            assert "forward" in stages, name
        order = [stage for stage in stages if stage in ("push", "3 collect", "5 update", "6 write", "commit")]
        assert order == ["push", "3 collect", "5 update", "6 write", "commit"], f"{name}: {stages}"
    assert any("1 read" in stages for stages in ways.values())
    assert any("4 read states" in stages for stages in ways.values())


def check_sums(folder: Path, events: list[dict[str, Any]], first: int, last: int) -> None:
    """Check that the trace has the bytes of all pulls and pushes of its steps, as the run's metrics have them."""
    rows = {row["step"]: row for row in metrics(folder, "run")}
    for track, worker, key in (("2 hand out", "pull", "bytes_pulled"), ("3 collect", "push", "bytes_pushed")):
        moved = rows[last][key] - rows[first - 1][key]
        tracks = {
            event["tid"]: event["args"]["name"].partition(" (")[0] for event in events if event["name"] == "thread_name"
        }
        by_server = [
            event for event in events if event["ph"] == "X" and tracks[event["tid"]].endswith(f"server 1: {track}")
        ]
        by_workers = [event for event in events if event["ph"] == "X" and event["name"].startswith(f"{worker} ")]
        assert sum(event["args"]["bytes"] for event in by_server) == moved
        assert sum(event["args"]["bytes"] for event in by_workers) == moved
        assert len(by_server) == len(by_workers)


@pytest.mark.timeout(60)
def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    code, _, error = finish(start(tmp_path, "trace", "."))
    assert code == 2
    assert "expected a run folder, found a folder without a run" in error


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_run_over_the_network_is_traced_on_the_servers_clock(tmp_path: Path, transport: str) -> None:
    timeouts = QUICK.model_copy(update={"progress_seconds": 0.05})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    with (
        udp_server(tmp_path / "store", 1, transport=transport) as server,
        connect(server.url, rank=0, workers=1, key=KEY, timeouts=timeouts) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        luwu.parallelize(model, session, blocks=[torch.nn.Linear])
        optimizer = luwu.AdamW(model, lr=1e-3)
        ask, said = ask_at(server.url, CREDENTIALS), []
        asked = pool.submit(trace_run, [ask], STEPS, 1 << 20, said.append, lambda _: time.sleep(0.01), 0)
        while not asked.done():
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
        with pytest.raises(AuthenticationError):
            ask_at(server.url, Credentials(b"another key of a job"))(pb.TraceRequest(steps=1, most_bytes=1 << 20))
    made = make_events(asked.result())
    assert made.about["last step"] - made.about["first step"] == STEPS - 1
    assert not made.about["records that did not come"]
    assert made.about["clock error in nanoseconds"]["worker 0"] > 0
    assert {each.name for each in made.slices} >= {"aten::addmm", "AddmmBackward0"}
    assert_nested(made.slices)
    for flow in made.flows:
        tracks = [track.partition(" (")[0].removeprefix("server 1: ") for track, _ in flow.points]
        order = ["2 hand out", "3 collect", "5 update", "6 write", "commit"]
        for one, other in [("worker 0", "3 collect"), *itertools.pairwise(order)]:
            assert tracks.index(one) < tracks.index(other), f"{flow.name}: {tracks}"
    assert {flow.name.split(", ")[1] for flow in made.flows} == {"0", "1"}
    assert len(made.flows) == 2 * STEPS


def test_a_session_that_ends_within_a_trace_leaves_no_profiler_behind(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    with udp_server(tmp_path / "store", 1, transport="tcp") as server:
        with connect(server.url, rank=0, workers=1, key=KEY, timeouts=QUICK) as session:
            luwu.parallelize(model, session, blocks=[torch.nn.Linear])
            optimizer = luwu.AdamW(model, lr=1e-3)
            ask_at(server.url, CREDENTIALS)(pb.TraceRequest(steps=9, most_bytes=1 << 20, profile_worker=0))
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            assert _profiler_enabled()
        assert not _profiler_enabled()


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_several_servers_make_one_trace(tmp_path: Path, transport: str) -> None:
    timeouts = QUICK.model_copy(update={"progress_seconds": 0.05})
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    with (
        udp_server(tmp_path / "store-0", 1, transport=transport) as one,
        udp_server(tmp_path / "store-1", 1, transport=transport) as two,
        connect(f"{one.url},{two.url}", rank=0, workers=1, key=KEY, timeouts=timeouts) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        luwu.parallelize(model, session, blocks=[torch.nn.Linear])
        optimizer = luwu.AdamW(model, lr=1e-3)
        asks = [ask_at(server.url, CREDENTIALS) for server in (one, two)]
        asked = pool.submit(trace_run, asks, STEPS, 1 << 20, lambda text: None, lambda _: time.sleep(0.01))
        while not asked.done():
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
    made = make_events(asked.result())
    assert not made.about["records that did not come"]
    assert made.about["last step"] - made.about["first step"] == STEPS - 1
    assert made.about["clock error in nanoseconds"]["server 2"] > 0
    assert_nested(made.slices)
    ways = {flow.name: [track.partition(" (")[0] for track, _ in flow.points] for flow in made.flows}
    assert len(ways) == 2 * STEPS * 2
    for name, tracks in ways.items():
        server = name.rpartition(", ")[2]
        stages = [f"{server}: {stage}" for stage in ("2 hand out", "3 collect", "5 update", "6 write", "commit")]
        assert [track for track in dict.fromkeys(tracks) if track in stages] == stages, f"{name}: {tracks}"
        assert "worker 0" in tracks and all(track.startswith(("worker 0", f"{server}: ")) for track in tracks)


def loss_of(model: torch.nn.Module) -> torch.Tensor:
    loss = model(torch.ones(4, 64)).square().mean()
    loss.backward()
    return loss


def test_a_switch_is_a_process_of_the_trace(tmp_path: Path) -> None:
    timeouts = QUICK.model_copy(update={"progress_seconds": 0.05})
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    with (
        udp_server(tmp_path / "store", 1, switches=1) as server,
        udp_switch(server.url, "rack") as switch,
        connect(server.url, rank=0, workers=1, key=KEY, timeouts=timeouts) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        luwu.parallelize(model, session, blocks=[torch.nn.Linear])
        optimizer = luwu.AdamW(model, lr=1e-3)
        ask = ask_at(server.url, CREDENTIALS)
        optimizer.step(lambda: loss_of(model))  # the run has begun, so its switch is known
        asked = pool.submit(trace_run, [ask], STEPS, 1 << 20, lambda text: None, lambda _: time.sleep(0.01))
        wait_until(lambda: switch._tracing._on, "the switch to record")  # it hears of the trace after the workers
        while not asked.done():
            optimizer.step(lambda: loss_of(model))
    found = asked.result()
    made = make_events(found)
    assert not made.about["records that did not come"]
    assert made.about["clock error in nanoseconds"]["switch rack"] > 0
    assert_nested(made.slices)
    assert len(made.flows) == 2 * STEPS
    errors = sum(made.about["clock error in nanoseconds"].values())
    for flow in made.flows:
        times = {track.partition(" (")[0]: round(1e9 * at) for track, at in flow.points}  # the last of each track
        pushed, added, updated = (times[name] for name in ("worker 0", "switch rack: sums", "server 1: 5 update"))
        assert pushed - errors <= added <= updated + errors, f"{flow}: {errors} ns"
    pushed = 4 * 2 * (64 * 64 + 64)
    sums = [each for each in made.slices if each.track.startswith("switch rack")]
    assert sum(each.details["bytes"] for each in sums) >= pushed * STEPS / 2  # mantissas have two bytes, or four
    (switch,) = [process for process in found.processes if process.name == "switch rack"]
    assert len(switch.packets) >= 2 and switch.packets[-1].came > switch.packets[0].came
