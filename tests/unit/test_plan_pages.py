"""Plans in README and docs: figures are worked out again, and commands are run or parsed."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.launch.settings import build_settings
from luwu.plan.advice import advise, thresholds_of
from luwu.plan.choices import Choices
from luwu.plan.planning import make_plan
from luwu.plan.report import sections
from luwu.plan.requests import make_request

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import plan_table

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PLANNING = (ROOT / "docs" / "planning.md").read_text()
PAGE = (ROOT / "docs" / "one-gpu.md").read_text()
COMMANDS = [line for line in PAGE.splitlines() if line.startswith(("luwu plan", "luwu train", "luwu export"))]
MACHINE = {"model": "llama-3.1-8b", "seq": 2048, "machine": "desktop", "gpu": "rtx-4090"}
SHARED = {"ram": "64GiB", "disk": "4TB@7GB/s"}


def parsed(command):
    """The values of a command's flags, as typer takes them."""
    _, name, *words = shlex.split(command)
    group = typer.main.get_command(app)
    return group.commands[name].make_context(name, words).params


def test_the_table_of_plans_is_what_the_planner_says():
    section = PLANNING.partition(plan_table.BEGIN)[2].partition(plan_table.END)[0]
    assert section.strip() == plan_table.plan_table(), "run python tools/plan_table.py"


def test_the_readme_says_at_its_top_that_nothing_has_run_on_a_gpu():
    top = README.partition("\n## ")[0]
    assert "Nothing has run on a GPU yet" in top
    assert "These are plans; no GPU has measured them." in PLANNING
    assert "Every figure on this page is a plan." in PAGE.partition("\n## ")[0]


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("luwu plan")])
def test_the_recipes_plans_fit(command):
    shown = CliRunner().invoke(app, shlex.split(command)[1:])
    assert shown.exit_code == 0, shown.output
    assert "nothing is bought" in shown.output


def test_the_recipe_asks_for_what_is_planned_and_trains_what_is_recommended():
    first, second, train = (parsed(command) for command in COMMANDS[:3])
    for name, value in (MACHINE | SHARED).items():
        assert first[name] == second[name] == value
    advice = advise(make_plan(make_request(Choices(**MACHINE, **SHARED))))
    memory = f"{advice.plan.request.settings.run.memory >> 20}MiB"
    for run in (second, train):
        assert (run["batch"], run["micro_batch"], run["memory"]) == (advice.batch, advice.micro_batch, memory)
    assert (str(train["model"]), train["seq"]) == ("llama-3.1-8b", 2048)
    names = ("batch", "micro_batch", "memory", "workers", "device", "dtype", "offload", "steps")
    run = build_settings({"run": {name: train[name] for name in names}}).run
    assert (run.device, run.offload, run.workers) == ("cuda", "host", 1)
    assert parsed(COMMANDS[3])["store"] == train["store"]
    assert f'memory="{memory}"' in PAGE and f"micro_batch_size={advice.micro_batch}," in PAGE


def test_the_recipes_figures_are_those_of_its_plans():
    asked = thresholds_of(advise(make_plan(make_request(Choices(**MACHINE, **SHARED)))).plan)
    run = make_plan(make_request(Choices(**MACHINE, **SHARED, batch=33, micro_batch=32, memory="42789MiB")))
    eight = thresholds_of(make_plan(make_request(Choices(**MACHINE, **SHARED, optimizer="adamw8bit"))))
    cells = {
        "the card's memory": ("a worker's GPU", "all"),
        "server's share of the memory": ("the machine's memory", "server"),
        "layers' inputs, pinned": ("the machine's memory", "layers' inputs, pinned"),
        "the store on the disk": ("the server", "disk"),
        "a step": ("a step", "step"),
        "throughput": ("a step", "throughput"),
        "100M tokens": ("cost", "100M tokens"),
    }
    shown = {heading: dict(rows) for heading, rows in sections(run, 100e6).items()}
    for name, (heading, row) in cells.items():
        figure = re.split(r"[,;] ", shown[heading][row])[0]
        assert f"| {name} | {figure} |" in PAGE, (name, figure)
    for tokens in asked.parts.values():
        assert f"| {tokens:,.0f} tokens |" in PAGE
    copies = sum(phase.parts.get("copy", 0) for phase in run.step.phases)
    assert f"{copies:.3g} s here" in PAGE
    assert f"hidden from {eight.disk:,.0f} tokens on" in PAGE
    assert (asked.bottleneck, eight.bottleneck) == ("disk", "server")
