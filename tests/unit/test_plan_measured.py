"""Plans for this machine: arithmetic on a machine made up here, real measurements of next to nothing, bad input."""

import json
import os
import shlex
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.documented_keys import check_keys
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.core.units import parse_rate
from luwu.errors import ConfigError, LuwuError, StorePermissionError, StoreSpaceError
from luwu.launch import trial
from luwu.launch.settings import build_settings
from luwu.launch.trial import Trial, TrialSettings, Watch, run_trial
from luwu.models.shapes import gpt_shape
from luwu.plan.choices import Choices
from luwu.plan.measured import requests
from luwu.plan.measured.planning import command, forecast_here, plan_here, suggest
from luwu.plan.measured.requests import local_request
from luwu.probe import link, rates
from luwu.probe import training as machine
from luwu.probe.kernel_times import KernelSeconds, measure_kernels
from luwu.probe.link import LinkRates
from luwu.probe.rates import DiskRates, measure_disk, measure_update
from luwu.probe.training import Machine, StepCosts, remove_leftovers, small_settings

MODEL = gpt_shape(4, 256, 4, sequence=32, vocabulary=256, biases=False)
CHOICES = Choices(layers=4, hidden=256, heads=4, seq=32, batch=8, workers=1, dtype="float32", memory="1GiB")
KERNELS = KernelSeconds(
    layer_forward=0.010,
    layer_backward=0.020,
    last_product=0.004,
    root_forward=0.003,
    root_backward=0.001,
    copy_rate=1e10,
    sum_rate=1e9,
    memory_rate=1e10,
    products={},
)
MACHINE = Machine(
    processor="made up",
    processors=2,
    memory_bytes=2**34,
    free_bytes=2**33,
    workers=1,
    threads=2,
    disk=DiskRates(2e9, 1e9, 1.5e9, 0.0, True, 2e9, 0.0),
    update_rate=1e9,
    verified_update_rate=5e8,
    kernels=KERNELS,
    costs=StepCosts(0.002, 0.0005, 0.0002, 1e8, 3e8),
)


def settings(**changes):
    request = local_request(CHOICES.model_copy(update=changes), store="runs")
    return request.settings


def plan(machine=MACHINE, room=2.0**40, **changes):
    return plan_here(settings(**changes), MODEL, machine, room)


def phases(found):
    return {phase.name: phase for phase in found.step.phases}


def test_a_step_in_memory_is_the_sum_of_what_processors_do():
    found = phases(plan())
    layers, elements = MODEL.layers, sum(MODEL.block_elements())
    assert found["forward"].seconds == pytest.approx(layers * 0.010 + 0.003 + layers * 0.0005 / 2)
    backward = found["backward"].parts
    assert backward["compute"] == pytest.approx(layers * (0.010 - 0.004 + 0.020) + 0.001)
    idle = backward["blocks"]  # one processor of two, while the worker is on the other alone
    assert backward["server"] == pytest.approx(max(0, 2 * elements / 1e9 - idle))
    assert found["commit"].seconds == 0.002
    kept = plan(checkpoint=False)
    assert phases(kept)["backward"].parts["compute"] == pytest.approx(layers * 0.020 + 0.001)


def test_processors_that_a_worker_leaves_idle_take_the_server_s_work():
    def backward(processors, workers):
        return phases(plan(replace(MACHINE, processors=processors, workers=workers), workers=workers, batch=8))

    work = 2 * sum(MODEL.block_elements()) / 1e9  # seconds of one processor
    busy = backward(2, 2)["backward"]
    assert busy.parts["server"] == pytest.approx(work / 2)  # each of two workers waits for a half
    alone = backward(2, 1)["backward"]
    assert alone.parts["server"] == pytest.approx(max(0, work - alone.parts["blocks"]))


def test_a_slow_disk_binds_and_then_bytes_decide():
    slow = replace(MACHINE, disk=DiskRates(2e7, 1e7, 1.5e7, 0.0, True, 2e7, 0.0))
    found, server = plan(slow), forecast_here(settings(), MODEL)
    assert found.step.binds == "disk in backward"
    forward, backward = phases(found)["forward"], phases(found)["backward"]
    assert forward.parts["disk"] + backward.parts["disk"] == pytest.approx(server.written_bytes / 1e7)
    assert (
        forward.parts["disk"] == forward.seconds == phases(plan())["forward"].seconds
    )  # the tail, as long as it lasts
    out = plan(slow, memory=str(server.minimum_bytes - server.pinned_state_bytes) + "B")
    assert out.server.states_read_bytes == 0 or phases(out)["backward"].seconds > phases(found)["backward"].seconds


def test_states_from_the_disk_cost_their_checksums():
    model = gpt_shape(16, 512, 8, sequence=32, vocabulary=256, biases=False)
    choices = CHOICES.model_copy(update={"layers": 16, "hidden": 512, "heads": 8})
    whole = local_request(choices, store="runs").settings
    least = forecast_here(whole, model, 0).minimum_bytes
    tight = local_request(choices.model_copy(update={"memory": f"{least}B"}), store="runs").settings
    in_memory, out = (plan_here(each, model, MACHINE, 2.0**40) for each in (whole, tight))
    work = 2 * sum(model.block_elements()) / 1e9
    idle = phases(in_memory)["backward"].parts["blocks"]
    assert phases(in_memory)["forward"].parts["server"] == 0
    assert phases(in_memory)["backward"].parts["server"] == pytest.approx(work - idle)
    assert out.server.states_read_bytes > 0
    per_byte = 2 * (1 / 5e8 - 1 / 1e9) / 8  # the states of an element are 8 bytes
    forward, backward = (phases(out)[name].parts for name in ("forward", "backward"))
    reading = out.server.parameters_read_bytes * per_byte
    assert forward["server"] == pytest.approx(reading - forward["blocks"], rel=0.02)
    assert work - idle + reading < backward["server"] <= 2 * work - idle + 1.02 * reading


def test_micro_batches_take_their_slices_and_sums():
    whole, cut = phases(plan()), phases(plan(micro_batch=2))
    layers = MODEL.layers
    slices, sums = 4, 3 * MODEL.layer_size / KERNELS.sum_rate
    joined = 2 * 8 * 32 * 256 * 4 / KERNELS.memory_rate
    once = 0.010 - 0.004 + 0.020
    assert cut["backward"].parts["compute"] == pytest.approx(layers * (slices * once + sums + joined) + 0.001)
    assert cut["backward"].parts["blocks"] - whole["backward"].parts["blocks"] == pytest.approx(
        layers * (slices - 1) * 0.0002 / 2
    )


def test_gradients_are_kept_only_where_states_or_parameters_are_on_the_disk():
    whole = plan()
    assert whole.server.kept_bytes > 0
    assert whole.memory["parameters, states and gradients"] == whole.server.memory_bytes - whole.server.kept_bytes
    least = plan(memory=f"{whole.server.minimum_bytes}B")
    assert least.server.states_read_bytes > 0
    assert least.memory["parameters, states and gradients"] == least.server.memory_bytes


def test_what_does_not_fit_says_so():
    tight = plan(replace(MACHINE, free_bytes=2**20), room=1e6, memory="1MB")
    assert {miss.what for miss in tight.misses} == {"memory", "disk", "server's memory budget"}
    assert not plan().misses


def test_the_suggestion_has_all_in_memory_or_what_there_is_and_fewer_rows():
    whole = forecast_here(settings(), MODEL, 1 << 60).memory_bytes
    found = suggest(plan(memory="20MB"))
    assert whole <= found.settings.run.memory < whole + 2**20
    assert not found.misses
    small = replace(MACHINE, free_bytes=int(MACHINE.costs.server_bytes + MACHINE.costs.workers_bytes + 4e7))
    less = suggest(plan(small, seq=512, batch=64))
    assert less.settings.run.micro_batch is not None


def test_the_suggested_command_is_one_that_trains_what_was_planned(tmp_path):
    words = shlex.split(command(suggest(plan()), tmp_path / "a store"))
    assert words[:2] == ["luwu", "train"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert given["--layers"] == "4"
    assert given["--store"] == str(tmp_path / "a store")
    help_text = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "200"}).output
    assert all(flag in help_text for flag in given)


def test_the_suggested_command_starts_a_new_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(requests, "measure_machine", lambda *arguments: MACHINE)
    flags = ["plan", "--measured", "--layers", "4", "--hidden", "256", "--heads", "4", "--workers", "1"]
    for name in ("planned", "planned-2"):
        shown = CliRunner().invoke(app, [*flags, "--memory", "1GiB"])
        assert shown.exit_code == 0 and f"--run runs/{name}\n" in shown.output and "--store" not in shown.output
        (tmp_path / "runs" / name).mkdir(parents=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "rtx-4090"}, "gpu: expected none beside --measured"),
        ({"cluster": "dgx-a100"}, "cluster: expected none"),
        ({"model": "175b", "layers": None, "hidden": None, "heads": None}, "expected a folder with a config.json"),
        ({"memory": "12"}, "memory: expected a size with its unit"),
        ({"batch": 2, "workers": 3}, "run.workers: expected at most run.batch"),
    ],
)
def test_bad_input_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        settings(**changes)


@pytest.mark.parametrize("flag", [["--best"], ["--peers"], ["--chart", "a.png"]])
def test_flags_of_clusters_are_refused(flag):
    done = CliRunner().invoke(app, ["plan", "--measured", "--layers", "2", "--hidden", "64", "--heads", "1", *flag])
    assert done.exit_code == 2


def test_a_disk_is_measured_and_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "FILE_BYTES", 1 << 22)
    found = measure_disk(tmp_path / "not" / "there", read_bytes=1 << 16, write_bytes=1 << 17, seconds=0.01)
    assert min(found.read_rate, found.write_rate, found.mixed_rate, found.shared_read_rate) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StorePermissionError, match=str(tmp_path)):
        measure_disk(tmp_path, read_bytes=4096, write_bytes=4096, seconds=0.01)


def test_too_little_disk_says_how_much_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "FILE_BYTES", 1 << 60)
    with pytest.raises(StoreSpaceError, match=r"B free; free some space or name another folder with --store"):
        measure_disk(tmp_path, read_bytes=4096, write_bytes=4096, seconds=0.01)


def test_updates_are_measured_for_each_optimizer():
    assert measure_update("adamw8bit", "bfloat16", 2, verify=True, seconds=0.005) > 0
    with pytest.raises(ConfigError, match="expected one of"):
        measure_update("adamw9bit", "bfloat16", 2, verify=True, seconds=0.005)


@pytest.mark.parametrize("gated", [False, True])
def test_every_kernel_of_a_layer_is_timed(gated):
    shape = replace(MODEL, gated=gated, norm_vectors=1 if gated else 2, key_value_heads=2, positions=0 if gated else 32)
    found = measure_kernels(shape, "bfloat16", rows=2, micro_batch=1, workers=1, seconds=0.001)
    assert 0 < found.last_product < found.layer_forward
    assert min(found.layer_backward, found.root_forward, found.root_backward) > 0
    inside = 2 * shape.feed_forward if gated else shape.feed_forward
    assert set(found.products) == {"32 x 256 x 512", "32 x 256 x 256", f"32 x 256 x {inside}", "32 x 1024 x 256"}


def test_kernels_that_cannot_be_timed_say_why():
    with pytest.raises(LuwuError, match="kernels could not be timed"):
        measure_kernels(MODEL, "float9", rows=1, micro_batch=None, workers=1, seconds=0.001)


def test_a_trial_averages_the_steps_between_its_first_and_its_last(monkeypatch, tmp_path):
    monkeypatch.setattr(trial.MemoryPeak, "start", lambda self: None)
    short = build_settings(settings().model_dump(exclude_none=True), {"run": {"steps": 10}})
    watch = Watch(TrialSettings(settings=short, folder=str(tmp_path), warm_steps=3))
    for step in range(1, 11):
        meter = SimpleNamespace(last=SimpleNamespace(step=step, seconds=step / 10))
        watch.step(meter, {"bytes_read": 7 * step, "bytes_written": 1000 + 64 * step})
    found = watch.result(tmp_path)
    assert found.step_seconds == [0.4, 0.5, 0.6, 0.7]
    assert (found.bytes_read, found.bytes_written) == (7, 64)


def test_a_trial_counts_what_its_server_moved(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a trial learns from this text. " * 2000)
    wanted = small_settings(settings(), 2, None, text, timed_steps=2)
    found = run_trial(TrialSettings(settings=wanted, folder=str(tmp_path / "run")))
    assert isinstance(found, Trial)
    assert len(found.step_seconds) == 2
    shape = gpt_shape(2, 32, 1, sequence=8, vocabulary=256, biases=False)
    a_step = forecast_here(wanted, shape).written_bytes
    assert abs(found.bytes_written - a_step) * len(found.step_seconds) <= a_step  # the next step had begun to write
    assert found.bytes_read == 0
    assert found.workers_bytes > 2**26
    assert found.server_bytes > 2**24


def test_a_trial_that_fails_says_why(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("short")
    wanted = small_settings(settings(), 2, None, text, timed_steps=2)
    with pytest.raises(LuwuError, match=r"text|short"):
        run_trial(TrialSettings(settings=wanted, folder=str(tmp_path / "run")))


def test_what_a_killed_measurement_left_is_removed_and_nothing_else(tmp_path):
    mine, dead, other = (tmp_path / name for name in (f".luwu-plan-{os.getpid()}-a", ".luwu-plan-99999999-b", "store"))
    for folder in (mine, dead, other):
        folder.mkdir()
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == {mine, other}


def test_the_command_prints_tables_and_json(monkeypatch, tmp_path):
    monkeypatch.setattr(requests, "measure_machine", lambda *arguments: MACHINE)
    flags = ["plan", "--measured", "--layers", "4", "--hidden", "256", "--heads", "4", "--workers", "1"]
    flags += ["--memory", "1GiB", "--dtype", "float32", "--store", str(tmp_path)]
    shown = CliRunner().invoke(app, flags)
    assert shown.exit_code == 0, shown.output
    assert "luwu train --layers 4" in shown.output
    told = json.loads(CliRunner().invoke(app, [*flags, "--json", "--tokens", "1M"]).stdout)
    assert told["fits"] is True
    assert told["machine"]["disk"]["mixed_rate"] == 1.5e9
    check_keys("plan --measured", told | {"link": None})
    assert f"{told['tokens_per_second']:,.0f} tokens/s" in shown.output and told["suggested"]["command"] in shown.output
    assert told["budget"]["days"] == pytest.approx(1e6 / told["tokens_per_second"] / 86400)


def test_where_nobody_can_redraw_each_measurement_is_a_line(monkeypatch, tmp_path):
    began = []

    def notice(what, found):
        def measure(*arguments, **named):
            began.append(what)
            return found

        return measure

    trial = Trial(
        step_seconds=[0.01], bytes_read=0, bytes_written=0, store_bytes=0, server_bytes=10**8, workers_bytes=10**8
    )
    monkeypatch.setattr(machine, "measure_disk", notice("disk", DiskRates(2e9, 1e9, 1.5e9, 0.0, True, 2e9, 0.0)))
    monkeypatch.setattr(machine, "measure_update", notice("updates", 1e9))
    monkeypatch.setattr(machine, "measure_kernels", notice("kernels", KERNELS))
    monkeypatch.setattr(machine, "run_trial", notice("small model", trial))
    flags = ["plan", "--measured", "--layers", "4", "--hidden", "256", "--heads", "4", "--workers", "2"]
    flags += ["--memory", "1GiB", "--dtype", "float32", "--micro-batch", "1", "--store", str(tmp_path), "--json"]
    shown = CliRunner().invoke(app, flags)
    assert shown.exit_code == 0, shown.output
    assert shown.stderr.splitlines() == [
        f"measuring the disk of {tmp_path}",
        "measuring the server's updates for 2 workers",
        "measuring the model's kernels with 2 workers",
        "training a small model of 2 layers with 2 workers",
        "training a small model of 18 layers with 2 workers",
        "training a small model of 18 layers with 2 workers, one sequence at a time",
    ]
    assert set(began) == {"disk", "updates", "kernels", "small model"}
    json.loads(shown.stdout)


def test_a_link_is_told_and_its_rate_suggested_for_a_cluster(monkeypatch, tmp_path):
    monkeypatch.setattr(requests, "measure_machine", lambda *arguments: MACHINE)
    monkeypatch.setattr(link, "measure_link", lambda other, seconds: LinkRates(1.25e9, 1.2e9, 2.2e9, 1e-4))
    flags = ["plan", "--measured", "--layers", "4", "--hidden", "256", "--heads", "4", "--workers", "1"]
    flags += ["--memory", "1GiB", "--dtype", "float32", "--store", str(tmp_path), "--link-to", "host1:7090"]
    shown = CliRunner().invoke(app, flags)
    told = " ".join(shown.output.split())
    assert "1.25 GB/s there, 1.2 GB/s back, 2.2 GB/s both ways at once; answers in 100 us" in told
    assert "luwu plan --link 8.8Gbps" in shown.output
    assert parse_rate("8.8Gbps") == 1.1e9
    assert json.loads(CliRunner().invoke(app, [*flags, "--json"]).stdout)["link"]["back_rate"] == 1.2e9


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--link-to", "host1:7090"], "expected --measured beside it"),
        (["--measured", "--link-to", "host1:0"], "expected HOST:PORT"),
    ],
)
def test_a_link_that_makes_no_sense_is_refused(flags, message):
    shown = CliRunner().invoke(app, ["plan", "--layers", "4", "--hidden", "256", "--heads", "4", *flags])
    assert shown.exit_code == 2
    assert message in shown.stderr
