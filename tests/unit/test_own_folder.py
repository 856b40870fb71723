"""A new run gets a folder of its own: one with a user's files, or with the text, is refused before it is written to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.errors import ConfigError
from luwu.launch import joining
from luwu.launch.folder import RunFolder
from luwu.launch.own_folder import foreign_names, require_own


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder with a text of a user."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "book.txt").write_text("the quick brown fox\n" * 2000)
    return folder


@pytest.mark.parametrize("name", ["config.toml", "job.json", "run-id"])
def test_a_folder_with_a_run_is_fine_whatever_else_it_has(text: Path, name: str) -> None:
    (text / name).touch()
    require_own(RunFolder(text), str(text))


def test_a_folder_with_nothing_of_a_user_is_fine(tmp_path: Path, text: Path) -> None:
    require_own(RunFolder(tmp_path / "none"), str(text))
    (run := tmp_path / "run").mkdir()
    require_own(RunFolder(run), str(text))
    for name in ("luwu.lock", "corpus.bin", "worker-0.attempts", "lost+found", ".DS_Store", "train.log"):
        (run / name).touch()
    (run / "store").mkdir()
    require_own(RunFolder(run), str(text))
    (run / "disks" / "0").mkdir(parents=True)
    require_own(RunFolder(run), str(text), [run / "disks" / "0"])


@pytest.mark.parametrize(
    ("run", "data", "words"),
    [
        ("text", "text", "is --data itself"),
        ("text/run", "text", "lies in --data"),
        (".", "text", "has --data in it"),
        ("link", "text", "is --data itself"),
        ("text", None, "with 'book.txt' and no run"),
        ("text", "elsewhere", "with 'book.txt' and no run"),
    ],
)
def test_a_folder_of_a_user_is_refused(tmp_path: Path, text: Path, run: str, data: str | None, words: str) -> None:
    (tmp_path / "link").symlink_to(text)
    with pytest.raises(ConfigError, match=f"--run: expected .*{re.escape(words)}; name an empty folder"):
        require_own(RunFolder(tmp_path / run), None if data is None else str(tmp_path / data))


def test_files_of_a_run_and_those_that_were_named_are_not_foreign() -> None:
    names = ["worker-0.log", "metrics.jsonl.damaged", "a.txt", "settings.toml", "stores"]
    assert foreign_names(names, ["settings.toml"]) == ["a.txt", "stores"]


@pytest.mark.parametrize("more", [[], ["--data", "text"]])
def test_luwu_train_writes_nothing_into_a_text_folder(
    text: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.chdir(text.parent)
    result = CliRunner().invoke(app, ["train", "--run", "text", *more])
    assert result.exit_code == 2 and "LUWU-" in result.stderr and "--run: expected" in result.stderr
    assert [path.name for path in text.iterdir()] == ["book.txt"]


def test_a_machine_that_joins_writes_nothing_into_a_text_folder(text: Path) -> None:
    with pytest.raises(ConfigError, match="and no run"):
        joining.hold(RunFolder(text))
    assert [path.name for path in text.iterdir()] == ["book.txt"]
