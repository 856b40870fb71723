"""Simulated runs: against the plan, and against what stragglers, loss, servers and trees must do."""

import itertools
import json
from math import inf, nan

import pytest
from typer.testing import CliRunner

from luwu import _native
from luwu.cli.main import app
from luwu.errors import ConfigError, MemoryBudgetError, StepOrderError
from luwu.plan.choices import Choices
from luwu.plan.durability import traffic_of
from luwu.plan.luwu_step import step_time
from luwu.plan.planning import forecast_servers, make_plan, variant_of
from luwu.plan.requests import make_request
from luwu.plan.simulation.output import as_json, draw_timeline, write_trace
from luwu.plan.simulation.run import Scenario, simulate
from luwu.plan.simulation.server import ServerSteps
from luwu.plan.simulation.tree import Links
from luwu.plan.simulation.workers import Workers


def play(scenario=None, **choices):
    chosen = Choices(**({"model": "opt-1.3b", "form": "int16"} | choices))
    return simulate(make_request(chosen), scenario or Scenario())


@pytest.mark.parametrize("model", ["opt-13b", "175b"])
@pytest.mark.parametrize("memory", ["60GB", "400GB"])
def test_a_simulated_step_takes_what_the_plan_says(model, memory):
    request = make_request(Choices(model=model, memory=memory, form="int16"))
    server = forecast_servers(request)
    disk = traffic_of(server, server.written_bytes)
    # The simulated server answers a step when it is on the disk.
    planned = step_time(request.model, request.cluster, request.rows, disk, variant_of(request))
    assert simulate(request, Scenario(steps=2)).step_seconds == pytest.approx(planned.seconds, rel=0.05)
    assert make_plan(request).step.seconds <= planned.seconds


def test_later_steps_are_alike_and_faster_than_the_first_which_foretells_nothing():
    steps = as_json(play(Scenario(steps=4), memory="4GB"))["steps"]
    assert steps[0] > steps[1]
    assert steps[2] == pytest.approx(steps[3])


def test_a_step_sends_every_block_down_twice_and_up_once_and_the_root_once():
    played = play()
    count = {
        track: sum(
            span.start >= played.last_begin for span in played.record.spans if span.track == f"server 1: {track}"
        )
        for track in ("2 hand out", "3 collect")
    }
    layers, table, root = 24, 1, 1  # the head is tied, so the turn is the table's
    assert count == {"2 hand out": 2 * layers + 2 * table + root, "3 collect": layers + table + root}


def test_what_one_line_carries_comes_one_after_the_other():
    played = play(memory="4GB")
    for track in (
        "server 1: 1 read",
        "server 1: 2 hand out",
        "server 1: 3 collect",
        "server 1: 5 update",
        "slowest worker",
    ):
        spans = sorted((span.start, span.end) for span in played.record.spans if span.track == track)
        assert spans, track
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(spans)), track


def test_everybody_waits_for_a_straggler():
    usual, slow = play(batch=8 * 64), play(Scenario(stragglers=1, slowdown=2), batch=8 * 64)
    assert slow.step_seconds == pytest.approx(2 * usual.step_seconds, rel=0.05)
    one = make_request(Choices(model="opt-1.3b"))
    with pytest.raises(ConfigError, match="at most the 8 workers, found 9"):
        simulate(one, Scenario(stragglers=9))


def test_loss_costs_time_and_a_seed_repeats_it():
    seconds = [play(Scenario(loss=loss), batch=8).step_seconds for loss in (0.0, 0.01, 0.1)]
    assert seconds[0] < seconds[1] < seconds[2]
    again = [play(Scenario(loss=0.1, seed=seed), batch=8).step_seconds for seed in (0, 0, 1)]
    assert again[0] == again[1] == seconds[2] != again[2]


def test_servers_share_what_disks_take():
    one, two = (play(model="opt-13b", servers=servers, disks=2, batch=8).step_seconds for servers in (1, 2))
    assert one == pytest.approx(2 * two, rel=0.1)


def test_layer_order_is_slower_where_the_server_binds():
    step, layer = (play(Scenario(order=order), batch=8, disks=96).step_seconds for order in ("step", "layer"))
    assert layer > 1.05 * step


def test_a_hundred_thousand_workers_hang_on_a_tree_and_wait_a_little_longer():
    few, many = (play(Scenario(steps=2), workers=workers, batch=16 * workers) for workers in (31, 100_000))
    assert (few.links.levels, many.links.levels) == (1, 4)
    assert many.links.switches == 3226 + 105 + 4 + 1
    assert few.step_seconds < many.step_seconds < 1.02 * few.step_seconds


def test_a_tree_has_levels_enough_for_its_workers():
    for workers, fan_in, levels in ((1, 4, 1), (4, 4, 1), (5, 4, 2), (16, 4, 2), (17, 4, 3)):
        assert Links(workers, 1e9, fan_in).levels == levels
    with pytest.raises(ConfigError, match="at least 2 children"):
        Links(8, 1e9, 1)
    with pytest.raises(ConfigError, match="less than 1, found 1"):
        Links(8, 1e9, 4, loss=1.0)


def test_a_budget_that_the_server_would_refuse_is_refused():
    with pytest.raises(MemoryBudgetError, match="needs at least"):
        play(memory="1MB")


def window_schedule(blocks):
    """A schedule of equal blocks behind a root, in the smallest budget that can work: four slots."""
    specs = [_native.BlockSpec("<root>", 2048, True, True, "bfloat16")]
    specs += [_native.BlockSpec(str(number), 1 << 20, True, False, "bfloat16") for number in range(1, blocks)]
    least = _native.plan_store(specs, 1 << 18, "adamw", 1, 0, 1)["minimum_bytes"]
    return _native.WindowSchedule(specs, 1 << 18, "adamw", least)


def test_the_schedule_reads_ahead_along_the_recorded_pass_and_evicts_by_next_use():
    schedule = window_schedule(12)
    order = [0, *range(1, 12), *range(10, 0, -1)]
    read = []
    for _ in range(2):
        schedule.begin_step()
        read = []
        while (block := schedule.place_ahead()) is not None:
            read.append(block)
            schedule.read_done(block)
        for block in order:
            schedule.pulled(block)
            if schedule.absent(block):
                assert schedule.place(block)
                schedule.read_done(block)
                read.append(block)
            schedule.hold(block)
            if block:
                schedule.unhold(block)
            while (ahead := schedule.place_ahead()) is not None:
                read.append(ahead)
                schedule.read_done(ahead)
        schedule.unhold(0)
        schedule.end_step()
    with pytest.raises(StepOrderError, match="block 3 was given back, but nobody holds it"):
        schedule.unhold(3)
    assert read[:5] == sorted(read[:5])  # ahead, in the order of forward
    assert len(read) < len(order)  # the turn finds the last blocks still there
    assert max(read.count(block) for block in range(1, 12)) <= 2


def step_machine(workers=2, prepares=False):
    specs = [_native.BlockSpec(name, 2048, True, name == "<root>", "bfloat16") for name in ("<root>", "1")]
    return _native.StepMachine(specs, workers, prepares)


def names(actions):
    return [type(action).__name__ + (f" {action.block}" if hasattr(action, "block") else "") for action in actions]


def test_the_step_machine_answers_events_with_actions_and_waits_for_votes_and_for_sums():
    machine = step_machine()
    assert names(machine.begin_all()) == ["BeginPass"]
    assert names(machine.pull(1)) == []
    assert names(machine.push(1)) == ["Update 1"]
    assert names(machine.vote_all(2)) == names(machine.written(1)) == []
    assert names(machine.push(0)) == ["Update 0", "FinishOwed"]
    assert names(machine.written(0)) == ["WriteRecord"]
    assert names(machine.recorded()) == ["EndStep"]
    with pytest.raises(ConfigError, match="the model has no block 2"):
        machine.pull(2)
    with pytest.raises(StepOrderError, match="worker 0 ended a step that it had not begun"):
        machine.vote_all(2)


def test_one_server_of_several_prepares_a_step_and_waits_for_the_decision():
    machine = step_machine(prepares=True)
    machine.begin_all()
    for block in (0, 1):
        machine.push(block)
        machine.written(block)
    assert names(machine.vote_all(2)) == ["FinishOwed", "Answer"]
    assert names(machine.decide(True)) == ["WriteRecord"]
    machine = step_machine(prepares=True)
    machine.begin_all()
    machine.push(0)
    with pytest.raises(StepOrderError, match="block '1' was pushed by no worker"):
        machine.vote_all(1)


def test_simulated_servers_commit_when_all_have_prepared(monkeypatch):
    answers = []

    def note(server, prepared):
        answers.append((server._environment.now, prepared, server._name))
        answer(server, prepared)

    answer = ServerSteps._answer
    monkeypatch.setattr(ServerSteps, "_answer", note)
    played = play(Scenario(steps=2), servers=2, memory="4GB")
    for step, end in enumerate(played.ends):
        first, second, *ended = answers[4 * step : 4 * step + 4]
        assert (first[1], second[1]) == (True, True) and first[2] != second[2]
        assert ended == [(second[0], False, "server 1"), (second[0], False, "server 2")]
        assert end == second[0] + played.links.latency_seconds
    assert len(answers) == 8


def test_simulated_workers_are_refused_what_real_ones_are(monkeypatch):
    push = Workers._push
    monkeypatch.setattr(Workers, "_push", lambda workers, block: None if block == 3 else push(workers, block))
    with pytest.raises(StepOrderError, match="block '3' was pushed by no worker"):
        play()


def test_the_command_plays_and_writes_a_trace_and_a_picture(tmp_path):
    trace, picture = tmp_path / "run.json", tmp_path / "run.svg"
    arguments = ["simulate", "--model", "opt-1.3b", "--trace", str(trace), "--picture", str(picture)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "server 1: 6 write" in shown.output
    assert "8 workers, 1 switch\n" in shown.output
    assert "slowest worker" in picture.read_text()
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    steps = ("1 read", "2 hand out", "3 collect", "5 update", "6 write", "commit")
    assert names == {*(f"server 1: {step}" for step in steps), "slowest worker"}
    spans = [event for event in events if event["ph"] == "X"]
    commits = [event["ts"] for event in spans if event["name"].startswith("step ")]
    assert all(event["tid"] >= 1 and (event["dur"] > 0 or event["name"].startswith("step ")) for event in spans)
    told = json.loads(CliRunner().invoke(app, ["simulate", "--model", "opt-1.3b", "--json"]).output)
    assert told["steps"][-1] == told["step_seconds"]
    assert commits == [pytest.approx(1e6 * end, abs=1) for end in itertools.accumulate(told["steps"])]


@pytest.mark.parametrize(
    ("scenario", "name"),
    [
        (Scenario(seed=-1), "seed"),
        (Scenario(steps=0), "steps"),
        (Scenario(jitter=-0.1), "jitter"),
        (Scenario(jitter=nan), "jitter"),
        (Scenario(jitter=inf), "jitter"),
        (Scenario(slowdown=0.5), "slowdown"),
        (Scenario(slowdown=inf), "slowdown"),
    ],
)
def test_impossible_conditions_are_refused_by_name(scenario, name):
    with pytest.raises(ConfigError, match=f"^{name}: expected"):
        play(scenario)


def test_what_cannot_be_written_or_played_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"trace: .*cannot be written"):
        write_trace(play(), tmp_path / "missing" / "run.json")
    with pytest.raises(ConfigError, match=r"picture: .*cannot be written: No such file"):
        draw_timeline(play(), tmp_path / "missing" / "run.png")
    refused = CliRunner().invoke(app, ["simulate", "--model", "opt-1.3b", "--order", "random"])
    assert refused.exit_code == 2
