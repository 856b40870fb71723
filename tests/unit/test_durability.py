"""`durable`: the texts that ask for commit points, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import luwu
from luwu.core.durability import CommitPoints, parse_durable
from luwu.core.errors import ConfigError
from luwu.store.settings import DiskSettings

REFUSED = (
    "", "steps", "0 steps", "-1 steps", "1.5 steps", f"{2**53 + 1} steps", "10", 10, None, True, "3 minuts", "0 s",
    "5 m", "1e3 s", "10 h later", "nan s", "9" * 500 + " steps", "40000 hours 5 min", "100000 h", "Step",
    "\uff11\uff10 steps",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "steps", "seconds"),
    [
        ("step", 1, 0.0),
        ("1 step", 1, 0.0),
        ("10 steps", 10, 0.0),
        ("10steps", 10, 0.0),
        ("  10   steps ", 10, 0.0),
        (f"{2**53} steps", 2**53, 0.0),
        ("30 s", 0, 30.0),
        ("0.5 s", 0, 0.5),
        ("5 min", 0, 300.0),
        ("5 minutes", 0, 300.0),
        ("2 h", 0, 7200.0),
        ("1 hour", 0, 3600.0),
        ("stop", 0, 0.0),
    ],
)
def test_a_text_asks_for_commit_points(text: str, steps: int, seconds: float) -> None:
    assert parse_durable(text) == CommitPoints(steps, seconds)
    assert DiskSettings(durable=text).commit_points == CommitPoints(steps, seconds)


@pytest.mark.parametrize("value", REFUSED)
def test_another_value_is_refused_with_what_is_expected(value: object) -> None:
    with pytest.raises(ConfigError, match=r"expected step, a number of steps such as '10 steps'.*or stop; found"):
        parse_durable(value)


def test_an_opened_run_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^durable: expected step, .* found '10 stepz'"):
        luwu.open(tmp_path / "run", durable="10 stepz")
    assert not (tmp_path / "run").exists()


def test_the_settings_keep_the_text() -> None:
    assert DiskSettings(durable=" 10  steps").durable == "10 steps"
