"""Plans: against a real store, against the bars, and what cannot fit."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import luwu
from luwu.cli.main import app
from luwu.core.units import bytes_text
from luwu.errors import ConfigError
from luwu.models.gpt import GPT, Block, GPTConfig
from luwu.models.shapes import gpt_shape
from luwu.plan.choices import Choices
from luwu.plan.clusters import CLUSTERS
from luwu.plan.comparison import compare
from luwu.plan.luwu_step import OnDisk, Variant, step_time
from luwu.plan.model_presets import MODELS
from luwu.plan.planning import make_plan
from luwu.plan.requests import make_request
from luwu.plan.search import find_best
from luwu.server.forecast import forecast

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kit.paper_claims import interference, scale, shapes, sizes, throughput
from plan_megatron import PUBLISHED, WITHIN, predict
from plan_paper import EXPLAINED_BEYOND, SHARE, share_within


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_store_and_its_server_take_what_was_forecast(dtype, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    session = luwu.open(tmp_path / "run", memory=2**26, stores=folders)
    with torch.device("meta"):
        model = GPT(GPTConfig(layers=5, hidden=256, heads=4, seq=32))
    luwu.parallelize(model, session, blocks=[Block], dtype=getattr(torch, dtype))
    found = forecast(
        gpt_shape(5, 256, 4, sequence=32, vocabulary=256, biases=False).block_elements(),
        dtype=dtype,
        optimizer="adamw",
        folders=2,
        memory_bytes=2**26,
        workers=1,
    )
    stats = session._server.stats()
    session.close()
    assert stats["minimum_bytes"] == found.minimum_bytes
    names = ("version-0.luwu", "version-1.luwu", "frozen.luwu")
    files = [sum((folder / name).stat().st_size for name in names) for folder in folders]
    assert files == list(found.file_bytes)


def test_the_paper_is_reproduced_as_far_as_its_bar_says():
    claims = [*shapes(), *sizes(), *throughput(), *interference(), *scale()]
    assert share_within(claims) >= SHARE
    for claim in claims:
        assert abs(claim.error) <= EXPLAINED_BEYOND or claim.note, claim.what


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.name)
def test_megatrons_table_is_reproduced(row):
    assert predict(row) == pytest.approx(row.tflops, rel=WITHIN)


def test_traffic_follows_from_what_helps_on_the_way():
    model, paper = MODELS["opt-13b"], CLUSTERS["paper"]
    size = 2.0 * model.parameters
    streams = {"switch": (1, 1), "multicast": (1, 8), "none": (8, 8)}
    for aggregation, (down, up) in streams.items():
        step = step_time(model, replace(paper, aggregation=aggregation), 1, OnDisk(0, 0, 0, 0))
        assert step.link_bytes["each server, up"] == 2 * down * size
        assert step.link_bytes["each server, down"] == up * size
        assert step.link_bytes["worker, down"] == 2 * size


def test_a_step_gets_shorter_with_disks_until_something_else_binds():
    plans = [make_plan(make_request(Choices(model="opt-13b", disks=disks))) for disks in (2, 12, 96)]
    seconds = [plan.step.seconds for plan in plans]
    assert seconds[0] > seconds[1] >= seconds[2]
    assert plans[0].step.binds == "disk in backward"
    assert plans[2].step.binds != "disk in backward"


def test_bigger_batches_pull_and_push_the_same_bytes():
    small, large = (make_plan(make_request(Choices(model="opt-13b", batch=batch))) for batch in (8, 512))
    assert small.step.link_bytes == large.step.link_bytes
    assert large.tokens_per_second > small.tokens_per_second


def test_gradients_take_the_bytes_of_their_form():
    forms = {form: make_plan(make_request(Choices(model="opt-1.3b", form=form))) for form in ("int16", "int32")}
    up = {form: plan.step.link_bytes["worker, up"] for form, plan in forms.items()}
    assert up["int32"] == 2 * up["int16"]


def test_what_does_not_fit_says_by_how_much_and_what_would():
    plan = make_plan(make_request(Choices(model="1t", gpu="rtx-4090", batch=128, memory="1GB")))
    missing = {miss.what: miss.change for miss in plan.misses}
    assert not plan.fits
    assert "take GPUs of" in missing["GPU memory"]
    assert "raise the memory budget to" in missing["server's memory budget"]
    assert "take a batch of 64" in missing["host memory"]
    tiny = make_plan(make_request(Choices(model="175b", disks=1, disk_size="1TB")))
    assert "disks" in {miss.what: miss.change for miss in tiny.misses}["disk"]


def test_disks_that_wear_out_are_bought_anew():
    shape = {"layers": 24, "hidden": 2048, "heads": 16}
    plain, worn, lasting = (
        make_plan(make_request(Choices(**shape, endurance=endurance))) for endurance in (None, "600TBW", "9000000TBW")
    )
    disks = plain.request.cluster.server.disks
    a_day = plain.server.written_bytes / disks / plain.step.seconds * 86400
    assert plain.wear.day_bytes == worn.wear.day_bytes == pytest.approx(a_day)
    assert plain.wear.life_days is None and worn.wear.life_days == pytest.approx(600e12 / a_day)
    assert plain.cost == lasting.cost
    sets = 4 * 365 / worn.wear.life_days
    assert sets > 1
    assert worn.cost.disk_sets == sets
    assert worn.cost.price - plain.cost.price == pytest.approx((sets - 1) * plain.cost.parts["disks"])
    assert worn.tokens_per_second_and_dollar < plain.tokens_per_second_and_dollar
    assert worn.dollars(1e12) > plain.dollars(1e12)


def test_the_wear_of_a_budget_of_tokens_is_told():
    plan = make_plan(make_request(Choices(model="opt-1.3b", endurance="600TBW")))
    found = dict(plan.wear.rows(1e12, 10.0))
    assert found["written a day"] == bytes_text(plan.wear.day_bytes)
    share = 10 * plan.wear.day_bytes / 600e12
    assert found["1T tokens"] == f"{bytes_text(10 * plan.wear.day_bytes)} written, {share:,.1f} times its endurance"
    assert found["worn out"].endswith("by its endurance of 600 TB")
    with pytest.raises(ConfigError, match="endurance: expected an endurance in GBW or TBW, such as 600TBW"):
        make_request(Choices(model="opt-1.3b", endurance="600"))


def test_the_change_that_a_plan_names_is_enough():
    request = make_request(Choices(model="opt-13b", batch=8 * 256))
    changes = {miss.what: miss.change for miss in make_plan(request).misses}
    found = re.search(r"\(micro_batch (\d+)\)", changes["GPU memory"])
    assert found is not None
    enough, more = (request.with_run(micro_batch=count * int(found[1])) for count in (1, 2))
    assert "GPU memory" not in {miss.what for miss in make_plan(enough).misses}
    assert "GPU memory" in {miss.what for miss in make_plan(more).misses}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_slices_are_summed_in_float32_on_the_gpu(dtype):
    sliced, whole = (
        make_plan(make_request(Choices(model="opt-13b", batch=128, micro_batch=micro_batch, dtype=dtype)))
        for micro_batch in (8, None)
    )
    assert sliced.worker.gpu["sums of gradients"] == 2 * 4 * MODELS["opt-13b"].layer_size
    assert "sums of gradients" not in whole.worker.gpu


def test_the_best_setting_fits_and_gives_more_for_a_dollar():
    request = make_request(Choices(model="opt-13b"))
    best = find_best(request, vary_batch=True)
    assert best is not None
    assert best.plan.fits
    assert best.plan.tokens_per_second_and_dollar >= make_plan(request).tokens_per_second_and_dollar
    assert find_best(make_request(Choices(model="1t", gpu="rtx-4090")), vary_batch=False) is None


def test_peers_that_do_not_fit_say_what_they_lack():
    rows = {row.system: row for row in compare(make_request(Choices(model="175b")))}
    assert rows["luwu"].step is not None
    assert rows["zero3"].step is None
    assert "GPU memory lacks" in rows["zero3"].reason
    assert rows["zero_infinity"].step is not None
    assert rows["luwu"].tokens_per_second > rows["parameter_server"].tokens_per_second


def test_a_server_on_the_workers_moves_its_share_over_their_links():
    model, paper = MODELS["175b"], CLUSTERS["paper"]
    disk = OnDisk.everything(model.parameters)
    apart, beside = (step_time(model, paper, 16, disk, Variant(colocated=where)) for where in (False, True))
    assert beside.link_bytes["worker, down"] == apart.link_bytes["worker, down"] * (1 + 1 / 8)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (Choices(model="175b", link="100"), "link: expected a rate with its unit"),
        (Choices(model="175b", server_memory="512"), "server-memory: expected a size with its unit"),
        (Choices(model="175b", workers=0), "workers: expected at least 1"),
        (Choices(model="175b", batch=9), "multiple of 8 workers"),
        (Choices(model="175b", batch=0), "multiple of 8 workers, found 0"),
        (Choices(model="175b", batch=-8), "multiple of 8 workers, found -8"),
        (Choices(model="175b", layers=2), "found both"),
        (Choices(layers=2), "found 2"),
        (Choices(model="175b", gpu="a100-40gb"), "near it: a100-40gb"),
        (Choices(model="175b", cluster="papper"), "near it: paper"),
        (Choices(model="175b", aggregation="tofino"), "expected one of switch, multicast, none"),
    ],
)
def test_bad_input_is_refused_by_name(choices, message):
    with pytest.raises(ConfigError, match=message):
        make_request(choices)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokens", "-5"], "tokens: expected a count"),
        (["--chart", "missing/plan.png"], r"chart: missing/plan\.png: cannot be written: No such file"),
        (["--chart", "plan.xyz"], "chart: expected a file that ends in"),
    ],
)
def test_flags_of_the_command_are_refused_by_name(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["plan", "--model", "175b", *flags])
    assert found.exit_code == 2
    assert re.match(f"luwu: {message}", found.stderr)


def test_the_command_prints_tables_json_and_a_chart(tmp_path):
    runner, chart = CliRunner(), tmp_path / "plan.png"
    shown = runner.invoke(app, ["plan", "--model", "175b", "--tokens", "300B", "--peers", "--chart", str(chart)])
    assert shown.exit_code == 0
    assert "compute in backward binds" in shown.output
    assert "zero_infinity" in shown.output
    assert chart.read_bytes().startswith(b"\x89PNG")
    told = json.loads(runner.invoke(app, ["plan", "--model", "175b", "--tokens", "300B", "--json"]).output)
    assert told["fits"] is True
    assert told["budget"]["days"] == pytest.approx(300e9 / told["tokens_per_second"] / 86400)
    assert told["server"]["minimum_bytes"] < told["settings"]["run"]["memory"]
    assert runner.invoke(app, ["plan", "--model", "1t", "--gpu", "rtx-4090"]).exit_code == 1


def test_one_disk_is_a_disk():
    shown = CliRunner().invoke(app, ["plan", "--model", "175b", "--servers", "1", "--disks", "1"])
    assert " 1 x 1 disk (" in shown.output
