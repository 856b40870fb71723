"""Files with a second name are replaced before they are written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from luwu.core.files import drop_shared, unshare
from luwu.observe.metrics import MetricsLog
from luwu.store.folders import write_json


def linked(path: Path, text: str) -> Path:
    """Write a file, give it a second name, and return that."""
    path.write_text(text)
    other = path.with_name("other")
    os.link(path, other)
    return other


def test_a_shared_file_that_is_written_anew_loses_the_name_alone(tmp_path: Path) -> None:
    other = linked(tmp_path / "file", "old")
    drop_shared(tmp_path / "file")
    (tmp_path / "file").write_text("new")
    assert other.read_text() == "old"
    drop_shared(tmp_path / "missing")


def test_a_shared_file_that_is_changed_in_place_is_copied(tmp_path: Path) -> None:
    other = linked(tmp_path / "file", "old")
    (tmp_path / "file.own").write_text("what a crash left")
    unshare(tmp_path / "file")
    with (tmp_path / "file").open("a") as file:
        file.write(" and new")
    assert (other.read_text(), (tmp_path / "file").read_text()) == ("old", "old and new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]
    unshare(tmp_path / "missing")


@pytest.mark.parametrize("write", [drop_shared, unshare])
def test_a_file_of_its_own_stays_the_same_file(tmp_path: Path, write: object) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    before = path.stat().st_ino
    assert callable(write)
    write(path)
    assert (path.stat().st_ino, path.read_text()) == (before, "text")


def test_metrics_are_appended_to_a_file_of_the_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    other = linked(path, '{"attempt": 0}\n')
    with MetricsLog(path)._file as file:
        file.write(b"row\n")
    assert other.read_text() == '{"attempt": 0}\n'
    assert path.read_text() == '{"attempt": 0}\nrow\n'


def test_what_a_crash_left_of_a_file_and_a_copy_has_too_is_not_written_to(tmp_path: Path) -> None:
    other = linked(tmp_path / "file.partial", "half")
    write_json(tmp_path / "file.json", {})
    assert other.read_text() == "half"
