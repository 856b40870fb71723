"""The bytes that a run has written in all of its starts, and what is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.cli.train import written_words
from luwu.errors import ConfigError
from luwu.launch.outcome import Outcome
from luwu.launch.settings import Settings, build_settings
from luwu.launch.written import SAVE_SECONDS, WrittenBytes


def test_bytes_of_all_starts_are_added_up(tmp_path: Path) -> None:
    path = tmp_path / "written.json"
    assert WrittenBytes(path).end(5) == 5
    assert WrittenBytes(path).end(7) == 12
    assert WrittenBytes(path).end(0) == 12


def test_a_launcher_that_is_killed_loses_the_last_seconds_alone(tmp_path: Path) -> None:
    now = [0.0]
    written = WrittenBytes(tmp_path / "written.json", lambda: now[0])
    written.note(100)
    assert not (tmp_path / "written.json").exists()
    now[0] = SAVE_SECONDS
    written.note(200)
    now[0] += SAVE_SECONDS / 2
    written.note(300)
    assert WrittenBytes(tmp_path / "written.json").end(0) == 200


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"bytes": "9"}', '{"bytes": -1}', '{"bytes": true}', "9", '{"bytes": 1' + "0" * 4000 + "}"]
)
def test_a_damaged_count_begins_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / "written.json"
    path.write_text(text)
    assert WrittenBytes(path).end(3) == 3
    assert WrittenBytes(path).end(3) == 6


def test_a_count_that_cannot_be_saved_ends_no_run(tmp_path: Path) -> None:
    assert WrittenBytes(tmp_path / "missing" / "written.json").end(3) == 3


def settings(**run: object) -> Settings:
    return build_settings({"run": run})


def test_what_is_told_of_them(tmp_path: Path) -> None:
    outcome = Outcome(bytes_written=2 * 10**9, bytes_of_run=2 * 10**9)
    assert written_words(settings(), outcome) == "written to the store: 2 GB since this start"
    outcome.bytes_of_run = 6 * 10**12
    assert written_words(settings(), outcome) == "written to the store: 2 GB since this start, 6 TB by this run"
    words = written_words(settings(endurance="600TBW"), outcome)
    assert words.endswith("6 TB by this run, 1% of the endurance of its disk (600 TB)")
    assert "under 0.01% of the endurance" in written_words(settings(endurance="9000000TBW"), outcome)
    words = written_words(settings(endurance="600TBW", stores=["/no-a", "/no-b"]), outcome)
    assert words.endswith("0.5% of the endurance of each of its 2 disks (600 TB)")
    for name in "ab":
        (tmp_path / name).mkdir()
    one_disk = settings(endurance="6TBW", stores=[str(tmp_path / "a"), str(tmp_path / "b")])
    assert written_words(one_disk, outcome).endswith("100% of the endurance of its disk (6 TB)")


def test_an_endurance_has_a_unit() -> None:
    for text in ("600", "0TBW", ""):
        with pytest.raises(ConfigError, match=r"endurance: expected an endurance in GBW or TBW, such as 600TBW"):
            settings(endurance=text)
