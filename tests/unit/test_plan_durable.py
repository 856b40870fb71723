"""Plans with commit points: bytes, time, memory and the advice."""

import json
import math
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.core.durability import CommitPoints
from luwu.errors import ConfigError
from luwu.plan.choices import Choices
from luwu.plan.durability import CommitSteps, traffic_of
from luwu.plan.durable_advice import best_of, compare_durables, crash_seconds
from luwu.plan.luwu_step import OnDisk, Variant, step_time
from luwu.plan.planning import Plan, copies_bytes, make_plan
from luwu.plan.report import sections
from luwu.plan.requests import make_request
from luwu.plan.steps import PhaseTime, StepTime
from luwu.server.forecast import Forecast, forecast

FITS = {"model": "llama-3.1-8b", "machine": "workstation", "ram": "256GiB", "disk": "4TB@7GB/s"}


def plan(**changes: object) -> Plan:
    return make_plan(make_request(Choices(**(FITS | changes))))


def server(memory_bytes: int) -> Forecast:
    return forecast(
        [1 << 20] * 8, dtype="bfloat16", optimizer="adamw", folders=1, memory_bytes=memory_bytes, workers=2,
        keeps="all",
    )  # fmt: skip


def test_where_all_is_in_memory_only_commit_points_write() -> None:
    each, tenth, hundredth, end = (plan(durable=durable) for durable in ("step", "10 steps", "100 steps", "stop"))
    assert each.commits.written_bytes == each.server.written_bytes
    assert tenth.server.written_between_bytes == tenth.server.kept_disk_bytes == 0
    assert tenth.commits.written_bytes == pytest.approx(each.commits.written_bytes / 10)
    assert hundredth.commits.written_bytes == pytest.approx(each.commits.written_bytes / 100)
    assert end.commits.written_bytes == 0 and end.commits.every == math.inf
    without = {found.server.memory_bytes - found.server.kept_bytes for found in (each, tenth, hundredth, end)}
    assert len(without) == 1 and each.server.tail_share == 1.0  # memory is left for all gradients
    # One worker's gradients are kept in their dtype.
    assert tenth.server.kept_bytes == pytest.approx(2 * tenth.request.model.parameters, rel=0.01)
    speeds = [each.tokens_per_second, tenth.tokens_per_second, hundredth.tokens_per_second, end.tokens_per_second]
    assert speeds == sorted(speeds)
    assert each.tokens_per_second < 0.97 * tenth.tokens_per_second  # the disk sets the pace of every step


def test_a_budget_that_does_not_hold_all_writes_more() -> None:
    everything = server(1 << 40)
    assert everything.written_between_bytes == everything.kept_disk_bytes == 0
    assert everything.kept_bytes == 4 * 8 * (1 << 20)  # the sum of two workers' gradients is float32
    before = everything
    for memory in (3 * everything.memory_bytes // 4, everything.memory_bytes // 2, everything.minimum_bytes):
        found = server(memory)
        assert found.memory_bytes <= memory
        assert found.written_between_bytes >= before.written_between_bytes
        assert found.kept_disk_bytes >= before.kept_disk_bytes
        before = found
    assert before.written_between_bytes == before.written_bytes and before.kept_disk_bytes > 0


def steps(points: CommitPoints) -> CommitSteps:
    """Steps whose time is that of their records, in MiB."""

    def time(disk: OnDisk) -> StepTime:
        seconds = disk.written / 2**20
        return StepTime("luwu", 1, (PhaseTime("backward", seconds, {"disk": seconds}),))

    return CommitSteps.of(time, server(100 << 20), points)


def test_steps_are_the_mean_of_those_between_and_at_commit_points() -> None:
    each, tenth, end = steps(CommitPoints(1)), steps(CommitPoints(10)), steps(CommitPoints(0))
    assert each.step == each.point == tenth.point
    assert 0 < end.step.seconds < each.step.seconds
    assert tenth.step.seconds == pytest.approx((9 * end.step.seconds + each.step.seconds) / 10)
    assert tenth.step.phases[0].parts["disk"] == pytest.approx(tenth.step.seconds)
    assert tenth.records_bytes == pytest.approx(tenth.step.seconds * 2**20)
    timed = steps(CommitPoints(0, 4 * end.step.seconds))
    assert timed.every == pytest.approx(4)
    assert steps(CommitPoints(0, end.step.seconds / 2)).every == 1  # no step is more than one commit point


def test_writes_of_a_commit_point_have_the_whole_step() -> None:
    found = plan(durable="10 steps", ram="145GiB")  # next to no memory is left for copies
    phases = {phase.name: phase for phase in found.commits.point.phases}
    disk = sum(phases[name].parts["disk"] for name in ("forward", "backward"))
    alone = found.request.cluster.server.disk_seconds(0, found.server.written_bytes)
    assert disk == pytest.approx(alone, rel=0.01)
    assert phases["forward"].binds == "compute"
    assert found.commits.point.seconds == pytest.approx(max(alone, found.step.part("compute")), rel=0.01)


def test_a_commit_point_is_spread_over_later_steps_where_memory_has_room_for_copies() -> None:
    none, some, all_ = (plan(durable="10 steps", ram=ram) for ram in ("145GiB", "160GiB", "512GiB"))
    assert none.commits.point.seconds > some.commits.point.seconds > all_.commits.point.seconds
    assert all_.commits.point.seconds == pytest.approx(all_.step.seconds)
    copies = copies_bytes(all_.request, all_.server)
    assert copies == all_.server.written_bytes
    assert all_.machine["server"] == all_.server.memory_bytes + copies
    assert "copies of a commit point" in dict(sections(all_)["the server"])
    for durable, servers in (("step", 1), ("10 steps", 2)):  # nothing follows
        settled = replace(all_.request, cluster=replace(all_.request.cluster, servers=servers)).with_run(
            durable=durable
        )
        assert copies_bytes(settled, all_.server) == 0


def test_advice_weighs_speed_before_what_a_crash_costs() -> None:
    each, tenth, hundredth = compare_durables(plan(disk="4TB@5GB/s"))
    assert [found.request.settings.run.durable for found in (each, tenth, hundredth)] == [
        "step", "10 steps", "100 steps",
    ]  # fmt: skip
    assert crash_seconds(each) == 0 and crash_seconds(tenth) == pytest.approx(10 * tenth.step.seconds)
    assert best_of([each, tenth]) is tenth
    assert best_of([each]) is each
    slow = plan(batch=36, micro_batch=2, disk="4TB@28GB/s")  # whose computation hides the disk
    found = compare_durables(slow)
    assert crash_seconds(plan(durable="1 s")) > 0  # each step is one, and is answered before it is on the disk
    assert slow.tokens_per_second > 0.95 * max(other.tokens_per_second for other in found)
    assert best_of(found) is slow
    told = [found.request.settings.run.durable for found in compare_durables(plan(durable="5 min"))]
    assert told == ["5 min", "step", "10 steps", "100 steps"]


def test_a_small_budget_is_advised_to_write_every_step() -> None:
    small = plan(ram="48GiB", seq=2048)
    assert small.fits
    assert best_of(compare_durables(small)) is small


def test_the_command_tells_them() -> None:
    flags = ["plan", *(part for name, value in FITS.items() for part in (f"--{name}", value))]
    shown = CliRunner().invoke(app, [*flags, "--durable", "10 steps"])
    assert shown.exit_code == 0
    assert "a crash of the server costs 10 steps more at most, 2." in shown.output
    assert "gradients that are kept" in shown.output
    told = json.loads(CliRunner().invoke(app, [*flags, "--durable", "stop", "--json"]).output)
    assert [found["durable"] for found in told["durable"]["compared"]] == ["stop", "step", "10 steps", "100 steps"]
    assert told["durable"]["compared"][0]["crash_seconds"] is None
    refused = CliRunner().invoke(app, ["simulate", "--model", "opt-1.3b", "--durable", "stop"])
    assert refused.exit_code == 2 and "durable: expected step" in refused.output
    with pytest.raises(ConfigError, match=r"durable: expected step, a number of steps"):
        make_request(Choices(**FITS, durable="often"))


def test_kept_gradients_travel_once_each_way() -> None:
    found = server(100 << 20)
    traffic = traffic_of(found, 5.0)
    assert (traffic.kept, traffic.written) == (found.kept_disk_bytes, 5.0)


def test_what_the_disk_is_behind_with_runs_beside_the_next_forward() -> None:
    found = plan(ram="64GiB")
    cluster, model, rows = found.request.cluster, found.request.model, 1
    assert 0 < found.server.tail_share < 1 and found.server.kept_bytes > 0
    assert plan(ram="64GiB", durable="10 steps").server.tail_share == 0  # all are kept
    disk = OnDisk(0.0, 0.0, 10.0 * model.parameters, 10.0 * model.parameters)
    waits, follows, all_follows = (
        step_time(model, cluster, rows, disk, Variant(tail=share)) for share in (0.0, found.server.tail_share, 1.0)
    )
    assert waits.seconds > follows.seconds >= all_follows.seconds
    assert all_follows.part("disk") == pytest.approx(waits.part("disk"))  # not less work, at another time
    assert all_follows.seconds >= all_follows.part("disk")
    hidden = OnDisk(0.0, 0.0, 1.0, 1.0)
    assert step_time(model, cluster, rows, hidden, Variant(tail=1.0)) == step_time(
        model, cluster, rows, hidden, Variant()
    )
