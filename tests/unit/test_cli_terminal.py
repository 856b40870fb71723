"""Output of commands: no text from elsewhere controls the terminal, errors name a remedy, small sizes are not zero."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

import luwu
from luwu.cli.generate import Output
from luwu.cli.main import app
from luwu.cli.terminal import add_rows, say, say_rows
from luwu.cli.train import tell
from luwu.cli.watch import _show_here
from luwu.core.units import bytes_text
from luwu.core.words import counted, printable
from luwu.data.corpus import Corpus
from luwu.errors import StoreCorruptError
from luwu.launch.folder import RunFolder
from luwu.launch.local import Outcome
from luwu.launch.settings import Settings
from luwu.observe.display import LiveDisplay, PlainDisplay

ESCAPE = "\x1b[2J"


def test_small_sizes_are_not_zero():
    assert [bytes_text(count) for count in (0, 7, 1536, 2_450_000)] == ["0 B", "7 B", "1.54 kB", "2.45 MB"]


def test_counts_have_the_form_of_their_noun():
    assert counted(1, "switch", "switches") == "1 switch"
    assert counted(0, "switch", "switches") == "0 switches"
    assert counted(1000, "worker") == "1,000 workers"


def test_text_from_elsewhere_cannot_steer_the_terminal(capsys):
    assert printable("a\x1b[2Jb\n\tc\r\x07é\u202e") == "a\ufffd[2Jb\n\tc\ufffd\ufffdé\ufffd"
    say(f"name{ESCAPE}")
    assert capsys.readouterr().out == "name\ufffd[2J\n"


def test_a_table_shows_names_as_they_are(capsys):
    table = Table(show_header=False)
    add_rows(table, [("folder", f"/data/[red]x{ESCAPE}")])
    Console(width=80).print(table)
    shown = capsys.readouterr().out
    assert "/data/[red]x\ufffd[2J" in shown and "\x1b" not in shown


def test_rows_are_one_line_each_however_long(capsys):
    path = "/data/" + 60 * "folder/"
    say_rows([("folder", path), ("uuid", f"1{ESCAPE}")])
    assert capsys.readouterr().out == f"folder  {path}\nuuid    1\ufffd[2J\n"


@pytest.mark.parametrize("words", ["", "--help", "train --help", "help doctor", "store", "store --help"])
def test_help_shows_a_value_only_of_an_option_that_takes_one(words):
    command = [sys.executable, "-m", "luwu.cli", *words.split()]  # a process of its own: what help patches stays
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert "--help" in shown and "bool" not in shown.lower()
    assert ("<path>" in shown) == ("train" in words or "doctor" in words)


@pytest.mark.parametrize("command", ["train", "server", "plan", "import", "export"])
def test_help_cuts_no_name_on_a_narrow_terminal(command):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    assert "\u2026" not in shown and "--" in shown
    if command in ("train", "server", "export"):
        assert "--disk-full-wait-seconds " in shown
    if command == "train":
        assert "<root>:" in shown
        assert "steps between two measurements" in shown  # no flag that turns a setting off takes the sentences' room
        assert "--checkpoint " in shown and "--no-checkpoint " in shown


def test_the_version_is_the_package_s():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"luwu {luwu.__version__}\n"


@pytest.mark.parametrize("kind", [PlainDisplay, lambda console: LiveDisplay(console, 10)])
def test_what_a_run_says_cannot_steer_the_terminal(capsys, kind):
    with kind(Console(width=80)) as display:
        display.say(f"data{ESCAPE}")
        display.stage(f"reading{ESCAPE}", f"text{ESCAPE}")
    shown = capsys.readouterr().out
    assert "data\ufffd[2J" in shown and "reading\ufffd[2J" in shown and "\x1b[2J" not in shown


def test_a_sample_of_control_characters_is_shown_as_marks(capsys, tmp_path):
    corpus = Corpus(f"name{ESCAPE}", 1, 10, 10, 1.0, 10, 10)
    outcome = Outcome(corpus, 3, validation_loss=1.0, prompt=f"p{ESCAPE}", sample="\x00\x07\x1b]0;title\x07")
    tell(Console(width=80), Settings(), RunFolder(tmp_path), outcome)
    shown = capsys.readouterr().out
    assert "p\ufffd[2J\ufffd\ufffd\ufffd]0;title\ufffd" in shown
    assert not set(shown) & {"\x00", "\x07", "\x1b"}


def test_an_error_cannot_steer_the_terminal(tmp_path):
    name = tmp_path / f"no{ESCAPE}thing"
    result = CliRunner().invoke(app, ["train", "--data", str(name), "--run", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "no\ufffd[2Jthing" in result.stderr and "\x1b" not in result.stderr


@pytest.mark.parametrize(
    ("damage", "helps"),
    [
        ("s/version-0.luwu at offset 4096: the checksum is wrong", True),
        ("s/version-0.luwu at offset 0: the file header's checksum is wrong", True),
        ("s/version-1.luwu is truncated at offset 8192: expected 16384 bytes", True),
        ("s/frozen.luwu at offset 4096: the checksum is wrong", False),
        ("s/commit.luwu at offset 0: none of the commit records is valid", False),
        ("s/manifest.json: expected crc32c '1' of its contents, found '2'", False),
        ("s/run.json: expected JSON that names the store's run, found nothing", False),
        ("s/version-0.luwu is stripe 1 of 2 of this store; expected stripe 0", False),
        ("s/snapshots/4/version-0.luwu at offset 4096: the checksum is wrong", False),
    ],
)
def test_a_damaged_store_proposes_the_way_back_where_it_helps(monkeypatch, tmp_path, damage, helps):
    def look(*arguments):
        raise StoreCorruptError(damage)

    monkeypatch.setattr("luwu.store.upkeep.info", look)
    result = CliRunner().invoke(app, ["store", "info", str(tmp_path)])
    assert result.exit_code == 1
    assert damage in result.stderr
    assert ("`luwu snapshot list`" in result.stderr and "`luwu snapshot restore`" in result.stderr) == helps


@pytest.mark.parametrize("inside", ["", "store"])
def test_a_file_in_the_place_of_a_store_is_called_one(tmp_path, inside):
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["store", "info", str(tmp_path / "file" / inside)])
    assert result.exit_code == 1
    assert "expected a folder, found a file" in result.stderr and "permission" not in result.stderr


def test_a_size_without_a_unit_is_refused_by_the_name_of_its_flag(tmp_path):
    result = CliRunner().invoke(app, ["export", str(tmp_path / "out"), "--store", str(tmp_path), "--shard-size", "5"])
    assert result.exit_code == 2
    assert "luwu: --shard-size: expected a size with its unit" in result.stderr


class Words:
    """A stream of text whose tokens are words."""

    def __init__(self, last: str = "") -> None:
        self._last = last

    def push(self, token: int) -> str:
        return f" {token}"

    def finish(self) -> str:
        return self._last


def test_nothing_is_shown_before_the_first_token(capsys):
    with pytest.raises(StoreCorruptError), Output("In story 7", [Words()]):
        raise StoreCorruptError("damaged")
    assert capsys.readouterr().out == ""


def test_a_text_that_breaks_off_ends_its_line(capsys):
    with pytest.raises(StoreCorruptError), Output("In story 7", [Words()]) as output:
        output.take([1])
        raise StoreCorruptError("damaged")
    assert capsys.readouterr().out == "In story 7 1\n"


def test_a_text_begins_with_its_prompt(capsys):
    with Output("In", [Words("!")]) as output:
        output.take([1])
        output.take([2])
    with Output("In", [Words("?"), Words("!")]) as output:
        output.take([1, 2])
    assert capsys.readouterr().out == "In 1 2!\n--- 1 of 2\nIn 1?\n--- 2 of 2\nIn 2!\n"


def test_a_busy_port_is_one_line(tmp_path):
    (tmp_path / "job.key").write_text("ab" * 32)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        command = ["server", "--store", "s", "--workers", "1", "--key-file", "job.key", "--listen", place]
        done = subprocess.run(
            [sys.executable, "-m", "luwu.cli", *command], cwd=tmp_path, capture_output=True, text=True, timeout=100
        )
    assert done.returncode == 1
    assert done.stderr.startswith(f"luwu: cannot listen at {place}: Address already in use;"), done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_ends_the_runs_in_a_terminal_as_it_ends_their_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("time.sleep", interrupt)
    try:
        _show_here(SimpleNamespace(runs=list))
    except KeyboardInterrupt:
        pytest.fail("it went on to the command, which would end with 130")


@pytest.mark.parametrize("command", ["status", "trace", "watch"])
def test_a_key_file_that_cannot_be_read_is_refused_for_a_run_folder_too(command: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, [command, str(tmp_path), "--key-file", str(tmp_path / "nosuch")])
    assert (told.exit_code, told.stdout) == (2, "")
    assert "nosuch: cannot be read: No such file or directory" in told.stderr
