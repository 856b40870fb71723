"""Single machines that are server and workers: memory, disk, cost, and what is refused."""

import json

import pytest
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.errors import ConfigError
from luwu.plan.advice import advise, thresholds_of
from luwu.plan.choices import Choices
from luwu.plan.gpus import GPUS
from luwu.plan.machines import MACHINES, pinned_input_bytes
from luwu.plan.planning import make_plan
from luwu.plan.requests import make_request

DESKTOP = {"machine": "desktop", "gpu": "rtx-4090", "ram": "64GiB", "disk": "4TB@7GB/s"}
FLAGS = [part for name, value in DESKTOP.items() for part in (f"--{name}", value)]
SMALL = {"model": "llama-3.1-8b", "seq": 2048, "batch": 16, "micro_batch": 4}


def plan(**changes):
    return make_plan(make_request(Choices(**(DESKTOP | SMALL | changes))))


def misses(**changes):
    return {miss.what: miss.change for miss in plan(**changes).misses}


def test_server_and_worker_share_one_memory():
    found = plan()
    assert found.fits, found.misses
    assert set(found.machine) == {
        "server",
        "server's process",
        "layers' inputs, pinned",
        "workers' processes",
        "system",
    }
    assert found.machine["server"] == found.server.memory_bytes
    # What the others leave is the server's: nothing is there twice.
    assert 63.9 * 2**30 < sum(found.machine.values()) <= 64 * 2**30
    assert found.request.settings.run.memory % 2**20 == 0


def test_a_budget_that_holds_all_is_not_raised_further():
    found = plan(model="gpt2", seq=None)
    assert found.server.parameters_read_bytes == found.server.states_read_bytes == 0
    assert sum(found.machine.values()) < 32 * 2**30


def test_nothing_is_bought_and_only_power_is_paid():
    found = plan()
    assert found.cost.parts == {} and found.cost.price == 0
    assert found.cost.watts > 450
    assert found.tokens_per_second_and_dollar is None
    assert found.dollars(1e9) == pytest.approx(found.cost.watts * 1.3 / 1000 * 24 * found.days(1e9) * 0.10)


def test_there_is_no_network():
    found = plan()
    assert set(found.step.link_bytes) == {"worker, down", "worker, up"}
    assert all("pull" not in phase.parts for phase in found.step.phases[1:3])
    inputs = 2 * 16 * 2048 * 4096 * 32
    # Parameters twice and inputs once; gradients and inputs once.
    assert found.step.link_bytes["worker, down"] == 2 * 2 * found.request.model.parameters + inputs
    assert found.step.link_bytes["worker, up"] == 2 * found.request.model.parameters + inputs


def test_workers_share_memory_and_disk_and_have_a_link_each():
    one, two = plan(), plan(workers=2, batch=32)
    parts = [{phase.name: phase.parts for phase in found.step.phases} for found in (one, two)]
    for phase in ("forward", "backward"):
        assert parts[0][phase]["copy"] == parts[1][phase]["copy"]
        assert parts[0][phase]["server memory"] < parts[1][phase]["server memory"]
    assert parts[0]["backward"]["disk"] < parts[1]["backward"]["disk"]  # less of the memory is the server's
    assert two.machine["layers' inputs, pinned"] == 2 * one.machine["layers' inputs, pinned"]
    assert two.cost.watts == one.cost.watts + GPUS["rtx-4090"].watts
    assert thresholds_of(one).pull == pytest.approx(thresholds_of(two).pull)


def test_pinned_inputs_are_rounded_up_to_powers_of_two_slice_by_slice():
    found = plan(micro_batch=3, batch=9, seq=2048)
    once = 3 * 2048 * 4096 * 2  # 48 MiB
    assert pinned_input_bytes(found.request) == 3 * 32 * 2**26 > 3 * 32 * once
    assert pinned_input_bytes(plan(offload=False, batch=1, micro_batch=None).request) == 0


@pytest.mark.parametrize(
    ("changes", "what", "change"),
    [
        ({"ram": "8GiB"}, "memory", "--ram"),
        ({"batch": 1024}, "memory", "--batch"),
        ({"memory": "60GiB"}, "memory", "--memory"),
        ({"memory": "1GiB"}, "server's memory budget", "--memory"),
        ({"disk": "180GB@7GB/s"}, "disk", "--disk"),
        ({"batch": 64, "micro_batch": 64}, "GPU memory", "micro_batch"),
    ],
)
def test_what_does_not_fit_names_the_setting_that_gives_room(changes, what, change):
    found = misses(**changes)
    assert change in found[what], found


def test_the_settings_that_are_named_are_enough():
    batch = int(misses(batch=1024)["memory"].partition("--batch ")[2].split(")")[0])
    assert "memory" not in misses(batch=batch)
    assert "memory" in misses(batch=2 * batch)
    memory = misses(memory="60GiB")["memory"].partition("--memory ")[2].split(")")[0]
    assert misses(memory=memory) == {}
    ram = misses(ram="8GiB", batch=1, micro_batch=1)["memory"].partition("--ram ")[2].split(")")[0]
    assert misses(ram=ram, batch=1, micro_batch=1) == {}


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"machine": "desktp"}, "machine: expected a known name, found 'desktp'; near it: desktop"),
        ({"gpu": "rtx-409"}, "gpu: expected a known name, found 'rtx-409'; near it: rtx-4090"),
        ({"ram": "64"}, "ram: expected a size with its unit"),
        ({"disk": "4TB@7"}, "disk: expected a rate with its unit"),
        ({"disk": "4@7GB/s"}, "disk: expected a size with its unit"),
        ({"disk": "4TB@0GB/s"}, "disk: expected more than nothing"),
        ({"disk": "fast"}, r"disk: expected a known name.*or SIZE@RATE such as 4TB@7GB/s"),
        ({"workers": 0}, "workers: expected at least 1, found 0"),
        ({"link": "10Gbps"}, "link: expected none beside --machine"),
        ({"servers": 2}, "servers: expected none beside --machine"),
        ({"cluster": "selene"}, "cluster: expected none beside --machine"),
        ({"server_memory": "1TB"}, "server-memory: expected none beside --machine"),
        ({"machine": None}, "ram: expected --machine beside it"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(choices, message):
    with pytest.raises(ConfigError, match=message):
        make_request(Choices(**(DESKTOP | SMALL | choices)))


def test_every_machine_has_a_source_and_a_gpu():
    for machine in MACHINES.values():
        assert machine.source
        assert machine.one_machine


def test_the_least_batch_that_hides_everything_is_recommended():
    found = advise(plan())
    assert found.exposed == []
    assert found.plan.fits
    assert thresholds_of(found.plan).everything <= found.tokens
    fewer = plan(batch=found.batch - 1, micro_batch=found.micro_batch)
    assert thresholds_of(fewer).exposed((found.batch - 1) * 2048) == [found.bottleneck] == ["disk"]


def test_the_largest_micro_batch_that_fits_is_recommended():
    found = advise(plan(ram="128GiB", disk="4TB@2GB/s"))
    assert 1 < 2 * found.micro_batch <= found.batch
    assert found.micro_batch.bit_count() == 1
    assert "GPU memory" not in misses(ram="128GiB", batch=found.batch, micro_batch=found.micro_batch)
    assert "GPU memory" in misses(ram="128GiB", batch=found.batch, micro_batch=2 * found.micro_batch)


def test_where_nothing_hides_all_the_largest_that_fits_is_recommended():
    found = advise(plan(ram="40GiB", disk="4TB@1GB/s"))
    assert found.plan.fits
    assert "disk" in found.exposed
    assert not plan(ram="40GiB", disk="4TB@1GB/s", batch=2 * found.batch, micro_batch=found.micro_batch).fits


def test_a_cluster_gets_advice_too():
    found = advise(make_plan(make_request(Choices(model="175b"))))
    assert found.batch % 8 == 0
    assert found.bottleneck == "copies"
    assert advise(make_plan(make_request(Choices(model="1t", gpu="rtx-4090", ram=None)))) is None


def test_the_command_says_what_is_hidden_and_what_to_take():
    words = ["plan", *FLAGS, "--model", "llama-3.1-8b", "--seq", "2048", "--batch", "16", "--micro-batch", "4"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    for text in (
        "From this many tokens a step per worker the copies, the server and the disk are hidden",
        "nothing is bought",
        "the machine's memory",
        "disk needs the most",
    ):
        assert text in shown.output
    assert "$" not in shown.output
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert told["hidden_from_tokens"]["copies"] == pytest.approx(5563, rel=0.01)
    assert told["cost"]["dollars"] == 0
    assert told["tokens_per_second_and_dollar"] is None
    assert told["recommended"]["batch"] * 2048 == told["recommended"]["tokens"]
    assert sum(told["machine_bytes"].values()) <= 64 * 2**30


@pytest.mark.parametrize("flag", ["--best", "--peers"])
def test_what_is_worked_out_by_the_dollar_is_refused(flag):
    refused = CliRunner().invoke(app, ["plan", *FLAGS, "--model", "llama-3.1-8b", flag])
    assert refused.exit_code == 2
    assert f"{flag[2:]}: expected none beside --machine" in refused.stderr
