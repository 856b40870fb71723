"""Loggers get each committed step's figures, with the real packages; one that fails is left out."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest

from luwu.core.errors import ConfigError
from luwu.observe import logger_thread, loggers
from luwu.observe.loggers import KINDS, Loggers, Run, check_packages, check_target, figures_of
from luwu.observe.meter import StepRecord

RECORD = StepRecord(
    step=1, attempt=0, committed=True, loss=3.5, lr=0.01, grad_norm=None, tokens=64, seconds=0.5,
    tokens_per_second=128.0, hidden=0.75, bytes_pulled=1, bytes_pushed=2,
)  # fmt: skip


def run_in(folder: Path) -> Run:
    return Run(id="abc123", name="gpt", folder=folder, settings={"run.batch": 16, "model.layers": 2})


def nobody(text: str) -> None:
    raise AssertionError(text)


def train(target: str, folder: Path, *, first: int = 1, last: int = 3) -> None:
    """Steps of a run, the second of which is rolled back once, and a validation after the last one."""
    found = Loggers([target], run_in(folder), first - 1, nobody)
    for step in range(first, last + 1):
        if step == 2:
            found.step(replace(RECORD, step=1, committed=False, loss=99.0))
        found.step(replace(RECORD, step=step, loss=4.0 - step))
    found.validated(last, 0.25)
    found.close()


def events(folder: Path) -> list[tuple[int, str, float]]:
    """The scalars in TensorBoard's event files, oldest file first; ("restart", step) where steps are made again."""
    from tensorboardX.proto import event_pb2

    found = []
    for path in sorted(folder.glob("events*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += 16 + length
            if event.session_log.status == event.session_log.START:
                found.append((event.step, "restart", 0.0))
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


def test_figures_that_there_are_have_names() -> None:
    assert figures_of(RECORD) == {
        "train/loss": 3.5, "train/lr": 0.01, "speed/tokens_per_second": 128.0, "speed/step_seconds": 0.5,
        "speed/hidden": 0.75,
    }  # fmt: skip
    more = figures_of(replace(RECORD, grad_norm=1.5, validation_loss=2.0, loss_scale=1024.0))
    assert (more["train/grad_norm"], more["validation/loss"], more["train/loss_scale"]) == (1.5, 2.0, 1024.0)


def test_tensorboard_has_each_committed_step_once(tmp_path: Path) -> None:
    train("tensorboard", tmp_path)
    found = events(tmp_path / "tensorboard")
    assert [(step, value) for step, name, value in found if name == "train/loss"] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert [(step, value) for step, name, value in found if name == "validation/loss"] == [(3, 0.25)]
    assert any(name == "settings/text_summary" for _, name, _ in found)


def test_tensorboard_leaves_out_what_a_run_makes_again(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    train(f"tensorboard:{folder}", tmp_path)
    train(f"tensorboard:{folder}", tmp_path, first=3, last=4)
    assert (3, "restart", 0.0) in events(folder)
    assert not (tmp_path / "tensorboard").exists()


def test_trackio_has_each_committed_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="trackio is not installed")
    from trackio.sqlite_storage import SQLiteStorage

    train("trackio:words", tmp_path)
    train("trackio:words", tmp_path, first=4, last=4)
    found = SQLiteStorage.get_logs("words", "gpt")
    assert [(row["step"], row["train/loss"]) for row in found if "train/loss" in row] == [
        (1, 3.0), (2, 2.0), (3, 1.0), (4, 0.0),
    ]  # fmt: skip


def test_wandb_writes_a_run_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr("sys.argv", ["luwu", "train", "--on-alert", "https://hooks.example.org/a-secret"])
    train("wandb", tmp_path)
    (written,) = (tmp_path / "wandb").glob("offline-run-*/run-abc123.wandb")
    data = written.read_bytes()
    assert b"train/loss" in data and b"validation/loss" in data and b"99" not in data.split(b"train/loss")[1][:40]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"a-secret" in path.read_bytes()]


def test_wandb_is_asked_for_no_metadata_which_have_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Mock()
    monkeypatch.setitem(sys.modules, "wandb", package)
    train("wandb", tmp_path)
    assert package.Settings.call_args.kwargs["x_disable_meta"] is True


def test_a_logger_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        package = "json"
        asked = 0

        def __init__(self, run: Run, place: str, step: int) -> None:
            if place == "at once":
                raise OSError("no such place")

        def log(self, step: int, figures: dict[str, float]) -> None:
            Failing.asked += 1
            raise RuntimeError("the disk is full")

        def close(self) -> None:
            raise AssertionError("closed although it failed")

    monkeypatch.setitem(KINDS, "failing", Failing)
    said: list[str] = []
    found = Loggers(["failing", "tensorboard", "failing:at once"], run_in(tmp_path), 0, said.append)
    for step in (1, 2):
        found.step(replace(RECORD, step=step))
    found.close()
    assert Failing.asked == 1
    assert sorted(said, reverse=True) == [
        "failing:at once takes no more figures of this run, but metrics.jsonl does: no such place",
        "failing takes no more figures of this run, but metrics.jsonl does: the disk is full",
    ]
    assert [step for step, name, _ in events(tmp_path / "tensorboard") if name == "train/loss"] == [1, 2]


def test_a_full_disk_under_tensorboard_does_not_hold_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboardX.event_file_writer import EventsWriter

    write = EventsWriter.write_event

    def full(writer: object, event: Any) -> None:
        if event.summary.value:  # the first event, without figures, is written where the logger is opened
            raise SystemExit  # ends the writer's thread as an OSError does, without words on standard error
        write(writer, event)

    monkeypatch.setattr(EventsWriter, "write_event", full)
    monkeypatch.setattr(logger_thread, "MOST_WAITING", 5)
    said: list[str] = []
    found = Loggers(["tensorboard"], run_in(tmp_path), 0, said.append)
    for step in range(1, 100):
        found.step(replace(RECORD, step=step))
    found.close()
    assert said == ["tensorboard takes no more figures of this run, but metrics.jsonl does: 5 records wait for it"]


class Gate:
    """A logger that opens once its gate is, and keeps what it gets."""

    package = "json"
    gate = threading.Event()
    got: ClassVar[list[int]] = []

    def __init__(self, run: Run, place: str, step: int) -> None:
        Gate.gate.wait()

    def log(self, step: int, figures: dict[str, float]) -> None:
        Gate.got.append(step)

    def close(self) -> None:
        Gate.got.append(-1)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setitem(KINDS, "gate", Gate)  # type: ignore[arg-type]
    monkeypatch.setattr(Gate, "gate", threading.Event())
    monkeypatch.setattr(Gate, "got", [])
    yield Gate.gate
    Gate.gate.set()


def test_a_logger_that_opens_late_gets_all_records_in_their_order(tmp_path: Path, gate: threading.Event) -> None:
    found = Loggers(["gate", "tensorboard"], run_in(tmp_path), 0, nobody)
    for step in range(1, 50):
        found.step(replace(RECORD, step=step))
    assert Gate.got == []
    gate.set()
    found.close()
    assert Gate.got == [*range(1, 50), -1]
    assert len([0 for _, name, _ in events(tmp_path / "tensorboard") if name == "train/loss"]) == 49


@pytest.mark.parametrize(
    ("limit", "why"),
    [("CALL_SECONDS", "it has not answered for 0 s"), ("CLOSE_SECONDS", "it had not ended 0 s after the run")],
)
def test_a_logger_that_never_opens_is_left_out_and_said_once(
    limit: str, why: str, tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger_thread, limit, 0.0)
    said: list[str] = []
    found = Loggers(["gate"], run_in(tmp_path), 0, said.append)
    for step in (1, 2):
        found.step(replace(RECORD, step=step))
    found.close()
    assert said == [f"gate takes no more figures of this run, but metrics.jsonl does: {why}"]


def test_what_the_display_says_while_a_package_is_quiet_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with loggers._quiet():
        print("of the package")
        display = threading.Thread(target=print, args=("of the display",))
        display.start()
        display.join()
    print("after it")
    assert capsys.readouterr().out == "of the display\nafter it\n"


def test_a_target_that_no_logger_has_and_a_package_that_is_not_there_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert check_target("trackio:words") == "trackio:words"
    with pytest.raises(ConfigError, match=r"expected tensorboard, .*, opentelemetry, or .* :PLACE, found 'x'"):
        check_target("x")
    check_packages(["tensorboard:/tmp/board"])
    monkeypatch.setattr(loggers.TensorBoard, "package", "no_such_package")
    with pytest.raises(ConfigError, match=r"tensorboard needs the package no_such_package, .*pip install tensorboardX"):
        check_packages(["tensorboard"])
