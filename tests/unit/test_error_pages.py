"""Codes of errors never change, each has a page, and commands end with them; exit statuses stand in one place."""

from __future__ import annotations

import ast
import errno
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from luwu.cli.help import filled
from luwu.cli.main import app
from luwu.control import control_pb2 as pb
from luwu.control.frames import METHODS, failure_of, reply_of
from luwu.control.rpc import ERROR_METADATA, error_from
from luwu.core import errors
from luwu.core.error_pages import ERRORS, find_page, pages
from luwu.core.errors import ConfigError, LuwuError, StoreCorruptError, StoreSpaceError
from luwu.core.exits import SIGNAL_BASE, SIGNALLED, Exit, statuses
from luwu.launch.reports import error_report, reported_error

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import errors_page

ROOT = Path(__file__).resolve().parents[2]

CODES = {
    "LuwuError": "LUWU-100",
    "ConfigError": "LUWU-101",
    "DataError": "LUWU-102",
    "CheckpointError": "LUWU-103",
    "ManifestMismatchError": "LUWU-104",
    "MemoryBudgetError": "LUWU-105",
    "AuthenticationError": "LUWU-106",
    "NotUnderWayError": "LUWU-107",
    "StoreError": "LUWU-201",
    "StoreCorruptError": "LUWU-202",
    "StoreEmptyError": "LUWU-203",
    "StoreFormatError": "LUWU-204",
    "StoreLockedError": "LUWU-205",
    "StorePermissionError": "LUWU-206",
    "StoreSpaceError": "LUWU-207",
    "WaitStoppedError": "LUWU-208",
    "ServerError": "LUWU-301",
    "WorkerLostError": "LUWU-302",
    "AttemptVoidError": "LUWU-303",
    "NonFiniteError": "LUWU-401",
    "StepOrderError": "LUWU-402",
    "ForkedError": "LUWU-403",
    "DeviceError": "LUWU-501",
}
"""Codes that people have in their notes: a new class gets a new one, and none is changed or used again."""

SENT = [getattr(errors, name) for name in errors.__all__ if name != "error_named"]


def nodes(word: str) -> Iterator[tuple[str, ast.AST]]:
    """All parts of the sources that have a word, with their files' names."""
    for path in sorted((ROOT / "src" / "luwu").rglob("*.py")):
        if "_pb2" not in path.name and word in (text := path.read_text()):
            yield from ((path.name, node) for node in ast.walk(ast.parse(text)))


def errors_in_sources() -> set[str]:
    """Names of all classes that derive from LuwuError, by their sources, so that none has to be imported for it."""
    classes = [node for _, node in nodes("Error)") if isinstance(node, ast.ClassDef)]
    found = {"LuwuError"}
    while more := {each.name for each in classes if {ast.unparse(base) for base in each.bases} & found} - found:
        found |= more
    return found


def luwu(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stdout, done.stderr


def test_codes_are_what_they_were_and_every_error_has_its_own() -> None:
    assert {error.__name__: error.__dict__["code"] for error in ERRORS} == CODES
    assert errors_in_sources() == set(CODES)
    assert len(set(CODES.values())) == len(CODES)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert list(pages()) == sorted(CODES.values())
    text = (ROOT / "src/luwu/core/error_pages.toml").read_text()
    assert re.findall(r"^\[(.+)\]$", text, re.MULTILINE) == sorted(CODES.values())
    for page in pages().values():
        assert page.title and page.cases and page.meaning.endswith(".")
        assert all(when and remedy.endswith(".") for when, remedy in page.cases)
        assert all((ROOT / "docs" / place.partition("#")[0]).is_file() for place in page.more)


def test_the_docs_have_the_pages_and_the_statuses() -> None:
    text = errors_page.PAGE.read_text()
    for begin, end, wanted in (
        (errors_page.BEGIN, errors_page.END, errors_page.error_sections()),
        (errors_page.BEGIN_EXITS, errors_page.END_EXITS, errors_page.exits_table()),
    ):
        assert text.partition(begin)[2].partition(end)[0].strip() == wanted, "run python tools/errors_page.py"


@pytest.mark.parametrize("error", SENT, ids=lambda error: error.__name__)
def test_an_error_keeps_its_code_when_it_is_sent(error: type[LuwuError]) -> None:
    sent = error("the disk is gone")
    with pytest.raises(error) as over_a_socket:
        reply_of(pb.Answer.FromString(failure_of(sent).SerializeToString()), METHODS["Attach"])
    over_grpc = error_from(((ERROR_METADATA, error.__name__),), str(sent))
    assert over_grpc is not None
    codes = {over_a_socket.value.code, over_grpc.code, reported_error(error_report(sent)).code}
    assert codes == {CODES[error.__name__]}


@pytest.mark.parametrize("topic", ["LUWU-205", "luwu-205", "205", " Luwu-205 ", "StoreLockedError", "storelockederror"])
def test_help_explains_a_code_however_it_is_written(topic: str) -> None:
    status, shown, _ = luwu("help", topic)
    assert status == 0
    page = find_page("LUWU-205")
    words = " ".join(shown.split())
    assert words.startswith(f"LUWU-205 StoreLockedError: {page.title} {page.meaning}")
    assert all(f"- {when} {remedy}" in words for when, remedy in page.cases)
    assert words.endswith("exit status 1 more: docs/checkpoints.md")


def test_help_lists_all_codes_and_all_exit_statuses() -> None:
    _, shown, _ = luwu("help")
    assert [line.partition("  ")[0] for line in shown.splitlines()[: len(CODES)]] == sorted(CODES.values())
    words = " ".join(luwu("help", "EXIT")[1].split())
    assert all(f"{status} {' '.join(meaning.split())}" in words for status, meaning in statuses().items())


def test_an_unknown_code_is_refused_with_the_nearest() -> None:
    status, shown, error = luwu("help", "LUWU-209")
    assert (status, shown) == (2, "")
    assert re.match(r"luwu: luwu help: expected .*, found 'LUWU-209'; the nearest: LUWU-20\d, .*LUWU-20[78]", error)
    assert "StoreEmptyError" not in luwu("help", "train")[2]


def test_options_are_not_broken_at_their_hyphens() -> None:
    assert filled("set the option --disk-full-wait-seconds", 26, "  ").splitlines()[1] == "  --disk-full-wait-seconds"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_a_command_that_fails_ends_with_the_code_and_the_pages_status(
    error: type[LuwuError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("the disk\x1b is gone")

    monkeypatch.setattr("luwu.core.error_pages.find_page", fail)
    status, shown, said = luwu("help", "x")
    assert (status, shown) == (pages()[error.code].exit, "")
    assert said == f"luwu: the disk\ufffd is gone (luwu help {CODES[error.__name__]})\n"


def test_remedies_of_a_damaged_store_stand_before_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreCorruptError("the checksum is wrong")

    monkeypatch.setattr("luwu.store.snapshots.may_help", lambda text: True)
    monkeypatch.setattr("luwu.core.error_pages.find_page", fail)
    assert re.fullmatch(
        r"luwu: the checksum is wrong\n.*luwu snapshot restore.*\(luwu help LUWU-202\)\n", luwu("help", "x")[2]
    )


def test_a_full_disk_has_its_code_wherever_it_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/data/x")

    monkeypatch.setattr("luwu.core.error_pages.find_page", fail)
    status, _, said = luwu("help", "x")
    assert status == Exit.FAILED
    assert "/data/x" in said and said.endswith(f"(luwu help {StoreSpaceError.code})\n")


@pytest.mark.parametrize("words", [("tarin",), ("--bad",), ("store", "info"), ("plan", "--bad"), ("store", "bad")])
def test_an_option_or_a_command_that_does_not_exist_has_the_code_of_a_setting(words: tuple[str, ...]) -> None:
    status, shown, error = luwu(*words)
    assert (status, shown) == (Exit.BAD_INPUT, "")
    assert f"(luwu help {ConfigError.code})" in " ".join(error.replace("│", " ").split())


def test_statuses_are_what_they_were() -> None:
    assert {status.name: status.value for status in Exit} == {
        "DONE": 0, "FAILED": 1, "BAD_INPUT": 2, "SERVER_LOST": 3, "STOPPED": 130,
    }  # fmt: skip
    assert (SIGNAL_BASE, SIGNALLED[0], SIGNALLED[-1]) == (128, 129, 192)


def test_no_exit_status_is_written_elsewhere() -> None:
    """A literal in `typer.Exit(1)`, `sys.exit(1)`, `os._exit(1)`, `SystemExit(1)`, or a constant EXIT_NAME."""
    enders = {"typer.Exit", "sys.exit", "os._exit", "SystemExit"}
    found = []
    for file, node in (each for word in ("xit(", "EXIT_") for each in nodes(word)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in enders:
            found += [(file, node.lineno) for argument in node.args if isinstance(argument, ast.Constant)]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("EXIT_"):
            found += [(file, node.lineno)]
    assert found == []
