"""`luwu trace` says what its file does not have, and refuses a file that it could not write before it traces."""

from __future__ import annotations

import errno
import json
import os
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.cli.trace import say_what_is_missing
from luwu.control import control_pb2 as pb
from luwu.control import tracing
from luwu.control.frames import SOCKET_NAME
from luwu.core import perfetto
from luwu.core.errors import ConfigError
from luwu.core.trace import NOBODY, NONE, RECORD, Kind
from luwu.observe import run_trace
from luwu.observe.run_trace import require_writable
from luwu.store.run_record import Claim, Counts, RunRecord, claim_store


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (pb.ProcessTrace(name="server 1", dropped=1200), "server 1: 1,200 spans found no room"),
        (pb.ProcessTrace(name="worker 1", profile=pb.Profile(dropped=3)), "worker 1: 3 events of torch.profiler found"),
        (pb.ProcessTrace(name="worker 1", profile=pb.Profile(failure="x")), "worker 1: no events of torch.profiler: x"),
        (pb.ProcessTrace(name="worker 1"), "worker 1: no events of torch.profiler came; install"),
        (pb.ProcessTrace(name="worker 0"), ""),
    ],
)  # fmt: skip
def test_what_a_trace_does_not_have_is_said(
    process: pb.ProcessTrace, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say_what_is_missing(pb.RunTrace(processes=[process]), 1)
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(words) and bool(said.err) == bool(words)


def test_records_that_did_not_come_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    say_what_is_missing(pb.RunTrace(missing=["worker 3"]), None)
    assert capsys.readouterr().err == "worker 3: its records did not come\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/x.json", "No such file or directory"),
        ("file/x.json", "Not a directory"),
        ("folder", "Is a directory"),
    ],
)
def test_a_file_that_could_not_be_written_is_refused_before_the_run_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    asked: list[object] = []
    monkeypatch.setattr(tracing, "trace_run", lambda *arguments, **_: asked.append(arguments))
    told = CliRunner().invoke(app, ["trace", "luwu://127.0.0.1:1", "--output", str(tmp_path / name)])
    assert told.exit_code == 2 and asked == []
    assert f"cannot be written: {words}; choose another file (luwu help LUWU-101)" in told.stderr


def test_a_full_disk_leaves_the_file_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "t.json", tmp_path / "link.json"
    link.symlink_to(path)
    run_trace.write_run_trace(pb.RunTrace(first_step=3), link, "first")
    assert link.is_symlink() and '"first step": 3' in path.read_text()

    def fill(file: FileIO, data: bytes) -> None:
        file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(perfetto, "write_all", fill)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        run_trace.write_run_trace(pb.RunTrace(first_step=4), path, "first")
    assert '"first step": 3' in path.read_text() and sorted(tmp_path.iterdir()) == [link, path]


def test_a_trace_is_written_where_nothing_can_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_text("")
    monkeypatch.setattr(perfetto.os, "access", lambda folder, mode: False)
    monkeypatch.setattr(perfetto, "replaced_file", None)
    run_trace.write_run_trace(pb.RunTrace(first_step=3), path, "first")
    assert '"first step": 3' in path.read_text()
    run_trace.write_run_trace(pb.RunTrace(), Path("/dev/null"), "first")


def test_a_name_may_be_as_long_as_names_may_be(tmp_path: Path) -> None:
    longest = tmp_path / ("t" * (os.pathconf(tmp_path, "PC_NAME_MAX") - 5) + ".json")
    require_writable(longest)
    run_trace.write_run_trace(pb.RunTrace(first_step=3), longest, "first")
    assert [*tmp_path.iterdir()] == [longest]
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        require_writable(longest.with_name("t" + longest.name))


def refuse(path: Path) -> bool:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_a_run_folder_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", refuse)
    for command in ("trace", "status"):
        told = CliRunner().invoke(app, [command, str(tmp_path)])
        assert told.exit_code == 2
        assert f"{tmp_path}: expected a run folder, found one that cannot be read: Permission denied" in told.stderr


@pytest.mark.parametrize("command", ["trace", "status", "explain"])
def test_a_folder_that_is_not_there_is_said_not_to_be(tmp_path: Path, command: str) -> None:
    told = CliRunner().invoke(app, [command, str(tmp_path / "nope")])
    assert told.exit_code == 2 and "found no such folder; check the name" in told.stderr
    told = CliRunner().invoke(app, [command, str(tmp_path)])
    assert told.exit_code == 2 and ("found a folder without a run" in told.stderr or "no config.toml" in told.stderr)


@pytest.mark.parametrize("command", ["trace", "status"])
def test_of_a_run_that_has_ended_the_commands_are_named_that_tell_more(tmp_path: Path, command: str) -> None:
    run = tmp_path / "a run"
    run.mkdir()
    (run / "metrics.jsonl").write_text("")
    told = CliRunner().invoke(app, [command, str(run)])
    assert told.exit_code == 2 and "found one that has ended" in told.stderr
    assert f"`luwu watch '{run}'`" in told.stderr and f"`luwu explain '{run}'`" in told.stderr


def test_a_file_behind_a_folder_that_cannot_be_searched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(ConfigError, match="cannot be written: Permission denied"):
        require_writable(tmp_path / "t.json")


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {tmp_path}
    monkeypatch.setattr(run_trace.os, "access", lambda path, _: path not in refused)
    with pytest.raises(ConfigError, match="Permission denied"):
        require_writable(tmp_path / "t.json")
    (tmp_path / "t.json").write_text("{}")
    require_writable(tmp_path / "t.json")  # of which the file's own permission counts
    assert (tmp_path / "t.json").read_text() == "{}"
    refused.add(tmp_path / "t.json")
    with pytest.raises(ConfigError, match="Permission denied"):
        require_writable(tmp_path / "t.json")


@pytest.mark.parametrize(("known", "words"), [(True, "steps 2 to 3, 1 span"), (False, "3,003 of the store, 1 span")])
def test_steps_are_the_runs_own_where_its_store_says_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool, words: str
) -> None:
    (tmp_path / "run-id").write_text("it")
    (tmp_path / SOCKET_NAME).touch()  # of the launcher's server
    if known:
        (tmp_path / "store").mkdir()
        claim = Claim(RunRecord("it", "runs/it"), takes_weights=True)
        claim_store(tmp_path / "store", Claim(RunRecord("other", "runs/other")), Counts(), imported=False)
        claim_store(tmp_path / "store", claim, Counts(3000, 3000, 0), imported=False)
    record = np.array([(100, 200, 0, 3003, NONE, NONE, NOBODY, Kind.COMMIT)], RECORD)
    server = pb.ProcessTrace(name="server 1", records=record.tobytes())
    found = pb.RunTrace(first_step=3002, last_step=3003, processes=[server], missing=["worker 1 until step 3002"])
    monkeypatch.setattr(tracing, "ask_in", lambda folder: None)
    monkeypatch.setattr(tracing, "trace_run", lambda *_, **__: found)
    told = CliRunner().invoke(app, ["trace", str(tmp_path), "--output", str(tmp_path / "t.json")])
    assert words in told.stdout
    step = 3 if known else 3003
    assert told.stderr == f"worker 1 until step {step - 1}: its records did not come\n"
    written = json.loads((tmp_path / "t.json").read_text())
    assert written["otherData"]["first step"] == step - 1
    (process,) = [event["args"] for event in written["traceEvents"] if event["name"] == "process_name"]
    assert process == {"name": f"luwu run {tmp_path.name}"}
    (commit,) = [event for event in written["traceEvents"] if event["ph"] == "X"]
    assert (commit["name"], commit["args"]) == (f"step {step}", {"step": step})
