"""`luwu plan --layout`: tensor x pipeline x data parallelism beside a plan."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.errors import ConfigError
from luwu.plan.choices import Choices
from luwu.plan.layouts import lay_out
from luwu.plan.megatron import parallel_step
from luwu.plan.planning import make_plan
from luwu.plan.requests import make_request

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "planning.md").read_text()
COMMANDS = [line.partition("#")[0].strip() for line in PAGE.splitlines() if "--layout" in line.partition("#")[0]]
COMMANDS = [line for line in COMMANDS if line.startswith("luwu plan")]


def plan(**choices: object):
    given = {"model": "175b", "cluster": "selene", "workers": 64, "batch": 192, "micro_batch": 1}
    return make_plan(make_request(Choices(**(given | choices))))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_pages_command_prints_the_layouts_steps_beside_the_plans(command: str) -> None:
    shown = CliRunner().invoke(app, shlex.split(command)[1:])
    assert shown.exit_code == 0, shown.output
    rows = shown.output.partition("the layout\n")[2].splitlines()
    assert ["as Megatron-LM" in row or "replicas" in row or "LuWu alone" in row for row in rows[:4]] == [True] * 4
    assert all("a step" in row and "tokens/s" in row for row in rows[:4])


def test_the_page_has_such_a_command() -> None:
    assert len(COMMANDS) == 1


def test_the_objects_figures_are_those_of_the_modules() -> None:
    found = plan()
    laid_out = lay_out(found, "8x2x4@zero_bubble")
    step = parallel_step(found.request.model, found.request.cluster, 192, laid_out.how)
    described = json.loads(json.dumps(laid_out.as_json()))
    assert described["seconds"]["megatron"] == step.seconds
    assert described["seconds"]["luwu_alone"] == found.step.seconds
    assert (described["tensor"], described["pipeline"], described["data"]) == (8, 2, 4)
    assert described["schedule"] == "zero_bubble"
    assert lay_out(found, "8x2x4@interleaved").how.parts == 2


@pytest.mark.parametrize(
    ("text", "choices", "message"),
    [
        ("8x8", {}, "expected TENSORxPIPELINExDATA"),
        ("0x8x8", {}, "expected TENSORxPIPELINExDATA"),
        ("8x2x8", {}, "to be the 64 workers, found 128"),
        ("8x2x4@best", {}, "expected a known name, found 'best'"),
        ("8x2x4", {"micro_batch": 5}, "expected a multiple of replicas x micro-batch"),
        ("16x2x2", {}, "over the GPUs of one host, at most 8, found 16"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(text: str, choices: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lay_out(plan(**choices), text)


def test_gpus_without_nvlink_reach_each_other_over_their_links_to_the_host() -> None:
    with_nvlink, without = (lay_out(plan(**gpu), "8x2x4").alone.seconds for gpu in ({}, {"gpu": "rtx-4090"}))
    assert 0 < with_nvlink < without < float("inf")


def test_one_machine_has_no_layout() -> None:
    shown = CliRunner().invoke(
        app, ["plan", "--model", "llama-3.1-8b", "--machine", "desktop", "--layout", "1x1x1"], catch_exceptions=True
    )
    assert isinstance(shown.exception, (ConfigError, SystemExit))
