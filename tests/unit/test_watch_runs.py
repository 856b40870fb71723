"""`luwu watch` makes a state of a server's answer, finds runs, and tells a page what it has not got yet."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from luwu.cli.main import app
from luwu.control import control_pb2 as pb
from luwu.control.frames import SOCKET_NAME
from luwu.core.errors import ConfigError, NotUnderWayError, ServerError
from luwu.core.progress import BlockView, WorkerPhase
from luwu.watch import runs as watch_runs
from luwu.watch.ended import ended_words
from luwu.watch.folder import WatchedFolder, flat
from luwu.watch.runs import Cursor, Places, WatchedRun
from luwu.watch.state import Sample, run_record, worker_records
from luwu.watch.terminal import text_of


def status(**fields: Any) -> pb.StatusReply:
    told = pb.ProgressRequest(
        attempts=4, phase=WorkerPhase.BACKWARD.name, block="h.1", acquired=3, pushed=2,
        place="train.py line 7, in load", memory_bytes=1 << 20,
    )  # fmt: skip
    late = pb.WorkerStatus(rank=0, peer="10.0.0.3:400", progress=told, heard_seconds=0.5, behind_seconds=90.0)
    return pb.StatusReply(open=True, step=5, attempts=6, workers=2, present=[late, pb.WorkerStatus(rank=1)], **fields)


def test_workers_are_told_with_what_they_do_and_their_shares() -> None:
    late, new = worker_records(status().present, [3])
    assert (late["share"], late["late"], late["memory_bytes"], late["pushed"]) == (3, True, 1 << 20, 2)
    assert late["activity"] == "in backward of block h.1, at train.py line 7, in load"
    assert (new["share"], new["late"], new["activity"], new["heard_seconds"]) == (
        None,
        False,
        "has told nothing yet",
        None,
    )


def test_a_phase_that_nobody_knows_here_tells_nothing() -> None:
    told = pb.ProgressRequest(phase=max(WorkerPhase) + 1)  # type: ignore[arg-type]
    [record] = worker_records([pb.WorkerStatus(rank=0, progress=told)], [])
    assert record["activity"] == "has told nothing yet"


def test_the_state_of_a_run_is_json_and_knows_what_is_at_stake() -> None:
    reply = status(unwritten=2, since_commit_seconds=1.5, blocks=bytes([0, 7]), failure="no", pause="full", missing=[1])
    record = run_record(reply, None, Sample(0.0, {"luwu_server_memory_bytes": 7.0}), [])
    assert json.loads(json.dumps(record)) == record
    assert (record["durable_step"], record["blocks"], record["server_memory_bytes"]) == (3, [0, 7], 7.0)
    assert (record["failure"], record["pause"], record["missing"]) == ("no", "full", [1])


def write_rows(folder: Path, first: int, count: int) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as file:
        for attempt in range(first, first + count):
            row = {"attempt": attempt, "step": attempt + 1, "committed": True, "loss": 2.0, "sequences": [5, 3]}
            file.write(json.dumps(row) + "\n")


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: pb.StatusReply | Exception) -> WatchedRun:
    left = list(answers)

    def answer(*_: object, **__: object) -> pb.StatusReply:
        reply = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(watch_runs, "ask_run", answer)
    times = iter(range(100))
    return WatchedRun(str(folder), clock=lambda: float(next(times)))


def test_a_page_gets_everything_once_and_then_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path, 0, 3)
    (tmp_path / "config.toml").write_text('[run]\nsteps = 9\non_alert = "https://host/secret"\n[model]\nlayers = 2\n')
    (tmp_path / "worker-0.log").write_text("WARNING hot\n")
    run = watched(tmp_path, monkeypatch, status(blocks=b"\2\3", block_names=["<root>", "h.0"]))
    run.refresh()
    record, cursor = run.update(Cursor())
    assert record["anew"] and record["rows"]["step"] == [1, 2, 3]
    assert record["settings"] == {"run.steps": 9, "model.layers": 2}
    assert record["block_names"] == ("<root>", "h.0") and record["state"]["blocks"] == [2, 3]
    assert record["log"] == [{"source": "worker-0", "level": "warning", "text": "WARNING hot"}]
    assert record["state"]["present"][1]["share"] == 3
    write_rows(tmp_path, 3, 1)
    run.refresh()
    record, cursor = run.update(cursor)
    assert not record["anew"] and record["rows"]["step"] == [4] and record["log"] == []
    assert not {"settings", "block_names"} & record.keys()
    (tmp_path / "metrics.jsonl").unlink()
    write_rows(tmp_path, 0, 1)  # gone back: another file
    run.refresh()
    record, cursor = run.update(cursor)
    assert record["anew"] and record["rows"]["step"] == [1]


def test_a_url_has_a_state_and_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    watched(Path("unused"), monkeypatch, status())
    run = WatchedRun("luwu://localhost:7")
    run.refresh()
    record, cursor = run.update(Cursor())
    assert record["anew"] and record["rows"]["step"] == [] and record["state"]["step"] == 5 and run.seems_live()
    assert run.update(cursor)[0]["anew"] is False


def test_settings_that_change_are_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = watched(tmp_path, monkeypatch, NotUnderWayError("none"))
    (tmp_path / "config.toml").write_text("[run]\nsteps = 9\n")
    run.refresh()
    record, cursor = run.update(Cursor())
    assert record["settings"] == {"run.steps": 9} and "settings" not in run.update(cursor)[0]
    (tmp_path / "config.toml").write_text("[run]\nsteps = 20\n")
    os.utime(tmp_path / "config.toml", (7, 7))
    run.refresh()
    assert run.update(cursor)[0]["settings"] == {"run.steps": 20}


def test_rows_of_another_version_bind_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path, 0, 1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"attempt": 1, "step": 2, "committed": true, "slowest": "all", "seconds": "long"}\n')
    run = watched(tmp_path, monkeypatch, status())
    run.refresh()
    assert run.state["live"] and run.binding == ""


def test_a_run_seems_live_while_its_rows_are_fresh_or_its_socket_answers(tmp_path: Path) -> None:
    folder = WatchedFolder(tmp_path)
    assert not folder.seems_live()
    write_rows(tmp_path, 0, 1)
    assert folder.seems_live()
    os.utime(tmp_path / "metrics.jsonl", (7, 7))
    assert not folder.seems_live()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / SOCKET_NAME))
        assert not folder.seems_live()  # one that a killed run has left
        server.listen()
        assert folder.seems_live()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (NotUnderWayError("none"), "ended on 1970-01-02 00:00:00 after step 2"),
        (ServerError("it does not answer"), "it does not answer"),
    ],
)
def test_a_run_without_a_server_has_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    write_rows(tmp_path, 0, 2)
    os.utime(tmp_path / "metrics.jsonl", (day := time.mktime((1970, 1, 2, 0, 0, 0, 0, 0, -1)), day))
    run = watched(tmp_path, monkeypatch, error)
    run.refresh()
    record, _ = run.update(Cursor())
    assert run.unseen is None  # as its rows are there
    assert record["state"] == {"live": False, "ended": isinstance(error, NotUnderWayError), "why": why, "alerts": []}
    assert record["rows"]["step"] == [1, 2]


@pytest.mark.parametrize(
    ("step", "steps", "words"),
    [
        (None, 9, "is not under way; its folder tells no steps"),
        (9, 9, "ended on 1970-01-02 00:00:00 after all of its 9 steps"),
        (4, 9, "ended on 1970-01-02 00:00:00 after step 4 of 9, and goes on from there when it is started again"),
        (4000, None, "ended on 1970-01-02 00:00:00 after step 4,000"),
    ],
)
def test_the_end_of_a_run_in_words(step: int | None, steps: object, words: str) -> None:
    assert ended_words(step, steps, time.mktime((1970, 1, 2, 0, 0, 0, 0, 0, -1))) == words


def test_a_server_that_does_not_answer_is_said_to_and_is_no_step_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched(Path("unused"), monkeypatch, ServerError("nobody listens"))
    done = CliRunner().invoke(app, ["watch", "--terminal", "luwu://localhost:7"])
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr == "luwu: nobody listens (luwu help LUWU-301)\n"  # once
    done = CliRunner().invoke(app, ["watch", "--terminal", "luwu://localhost:7", "luwu://localhost:8"])
    assert done.exit_code == 1 and done.stderr == ""
    assert done.stdout == "".join(
        f"luwu://localhost:{port}: its server does not answer\n  nobody listens\n" for port in (7, 8)
    )


def test_one_run_that_is_seen_is_enough_for_status_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "a", 0, 1)
    watched(Path("unused"), monkeypatch, ServerError("nobody listens"))
    done = CliRunner().invoke(app, ["watch", "--terminal", "luwu://localhost:7", str(tmp_path / "a")])
    assert done.exit_code == 0 and "a: step 1" in done.stdout


def test_damaged_lines_and_odd_settings_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path, 0, 1)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\n[1]\n{"attempt": "x", "step": 1}\n')
    write_rows(tmp_path, 1, 1)
    (tmp_path / "config.toml").write_text("[run\n")
    run = watched(tmp_path, monkeypatch, NotUnderWayError("none"))
    run.refresh()
    record, _ = run.update(Cursor())
    assert record["rows"]["step"] == [1, 2] and record["settings"] == {}
    assert flat({"run": {"stores": ["/a"], "steps": 3}, "odd": 4}) == {"run.stores": "['/a']", "run.steps": 3}


def write_alert(folder: Path, name: str, state: str, time: float) -> None:
    alert = {"name": name, "state": state, "text": f"{name} is {state}", "step": 3, "time": time}
    with (folder / "alerts.jsonl").open("a") as file:
        file.write(json.dumps(alert) + "\n")


def test_alerts_stand_until_they_are_cleared_or_the_run_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path, 0, 1)
    (tmp_path / "job.json").write_text("{}")
    os.utime(tmp_path / "job.json", (100, 100))
    write_alert(tmp_path, "old", "raised", 50.0)
    write_alert(tmp_path, "slow", "raised", 150.0)
    (tmp_path / "alerts.jsonl").open("a").write('[]\n{"name": 3}\nnot json\n')
    run = watched(tmp_path, monkeypatch, status())
    run.refresh()
    record, cursor = run.update(Cursor())
    assert record["state"]["alerts"] == ["since step 3: slow is raised"]
    assert [(line["level"], line["text"]) for line in record["log"]] == [
        ("warning", "raised at step 3: old is raised"), ("warning", "raised at step 3: slow is raised"),
    ]  # fmt: skip
    write_alert(tmp_path, "slow", "cleared", 160.0)
    write_alert(tmp_path, "disk", "raised", 170.0)
    run.refresh()
    record, cursor = run.update(cursor)
    assert record["state"]["alerts"] == ["since step 3: disk is raised"] and record["log"][0]["level"] == "info"
    os.utime(tmp_path / "job.json", (200, 200))
    run.refresh()
    assert run.state["alerts"] == []


def test_alerts_stand_in_a_copy_of_a_folder_and_where_a_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_alert(tmp_path, "old", "raised", 500.0)
    write_alert(tmp_path, "run_started", "started", 400.0)
    write_alert(tmp_path, "disk", "raised", 300.0)
    write_alert(tmp_path, "damaged", "raised", 1e300)
    (tmp_path / "job.json").write_text("{}")  # later than all of them, as in a copy
    run = watched(tmp_path, monkeypatch, status())
    run.refresh()
    assert run.state["alerts"] == ["since step 3: disk is raised"]
    assert [line["level"] for line in run.update(Cursor())[0]["log"]] == ["warning", "info", "warning"]
    write_alert(tmp_path, "run_started", "started", 200.0)
    run.refresh()
    assert run.state["alerts"] == []
    write_alert(tmp_path, "slow", "raised", 100.0)
    os.utime(tmp_path / "job.json", (900, 900))
    run.refresh()
    assert run.state["alerts"] == ["since step 3: slow is raised"]


def test_places_are_runs_folders_of_runs_and_urls_and_get_more(tmp_path: Path) -> None:
    write_rows(tmp_path / "b", 0, 1)
    (tmp_path / "notes").mkdir()
    places = Places([str(tmp_path), str(tmp_path / "b"), "luwu://localhost:7"])
    assert [run.name for run in places.runs()] == ["b", "luwu://localhost:7"]
    first = places.runs()[0]
    write_rows(tmp_path / "a", 0, 1)
    assert [run.name for run in places.runs()] == ["b", "luwu://localhost:7", "a"]
    assert places.runs()[0] is first


@pytest.mark.parametrize(
    ("name", "words"), [("none", "No such file"), ("empty", "found neither"), ("file", "Not a dir")]
)
def test_a_place_without_a_run_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=words):
        Places([str(tmp_path / name)])


def test_the_terminal_says_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path, 0, 2)
    (tmp_path / "config.toml").write_text("[run]\nsteps = 9\n")
    run = watched(
        tmp_path, monkeypatch, status(blocks=bytes(BlockView), unwritten=1, since_commit_seconds=3, missing=[1])
    )
    run.refresh()
    text = text_of([run])
    for words in (
        "step 5 of 9", "loss 2", "last on the disk: step 4, 3 s ago", "waits for worker 1", "blocks  .r-o+uw#",
        "worker 0: in backward of block h.1, at train.py line 7, in load, 2 blocks pushed",
        "others have waited for 90 s", "worker 1: has told nothing yet", "w writing",
    ):  # fmt: skip
        assert words in text, text
    ended = watched(tmp_path, monkeypatch, NotUnderWayError("none"))
    ended.refresh()
    assert "step 2 of 9" in text_of([ended]) and "ended on " in text_of([ended])


def test_a_page_that_begins_anew_gets_the_log_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path, 0, 1)
    (tmp_path / "worker-0.log").write_text("WARNING hot\n")
    run = watched(tmp_path, monkeypatch, status())
    run.refresh()
    _, cursor = run.update(Cursor())
    (tmp_path / "metrics.jsonl").write_text('{"attempt": 0, "step": 1, "validation_loss": 3.0}\n')
    run.refresh()
    record, _ = run.update(cursor)
    assert record["anew"] and [line["text"] for line in record["log"]] == ["WARNING hot"]


def test_a_server_that_is_stopped_holds_nobody_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / SOCKET_NAME))
        server.listen(0)
        folder = WatchedFolder(tmp_path)
        assert [folder.seems_live() for _ in range(5)] == [True] * 5


def test_folders_beside_runs_that_can_be_none_hide_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "a", 0, 1)
    write_rows(tmp_path / "closed", 0, 1)
    (tmp_path / os.fsdecode(b"\xff")).mkdir()

    def exists(path: Path, found: Callable[[Path], bool] = Path.exists) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return found(path)

    monkeypatch.setattr(Path, "exists", exists)
    assert [run.name for run in Places([str(tmp_path)]).runs()] == ["a"]
    with pytest.raises(ConfigError, match="Permission denied"):
        Places([str(tmp_path / "closed")])


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_alert(tmp_path, "disk", "raised", 170.0)
    (tmp_path / "config.toml").write_text("[run]\nsteps = 9\n")
    (tmp_path / "a.log").symlink_to("a.log")  # nobody can open it
    (tmp_path / "b.log").write_text("fine\n")
    (tmp_path / "metrics.jsonl").symlink_to("metrics.jsonl")
    run = watched(tmp_path, monkeypatch, PermissionError(errno.EACCES, "Permission denied", "job.json"))
    run.refresh()
    record, _ = run.update(Cursor())
    assert [line["source"] for line in record["log"]] == ["b", "alerts"] and record["settings"] == {"run.steps": 9}
    assert record["state"] == {
        "live": False, "ended": False,
        "why": f"{tmp_path}/metrics.jsonl: cannot be read: Too many levels of symbolic links",
        "alerts": ["since step 3: disk is raised"],
    }  # fmt: skip


def test_settings_are_json() -> None:
    settings = flat({"optim": {"clip": math.inf, "seed": 3, "rate": 0.5, "odd": math.nan}})
    assert settings == {"optim.clip": "inf", "optim.seed": 3, "optim.rate": 0.5, "optim.odd": "nan"}


def test_the_terminal_has_the_last_figures_that_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path, 0, 2)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        for step, word in ((None, None), (10**400, "much")):
            row = {"attempt": 7, "step": step, "committed": False, "loss": word, "tokens_per_second": word}
            file.write(json.dumps(row) + "\n")
    run = watched(tmp_path, monkeypatch, NotUnderWayError("none"), status(blocks=b"\0\xff"))
    run.refresh()
    assert "step 2\n" in text_of([run]) and text_of([run]).endswith("loss 2")
    run.refresh()
    assert "blocks  .?\n" in text_of([run])


def test_the_terminal_has_lines_of_its_own_alone_and_rates_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = watched(tmp_path / "z\nz: step 9", monkeypatch, NotUnderWayError("none"))
    ended.refresh()
    pulled = "luwu_server_pulled_bytes_total"
    live = watched(tmp_path / "a", monkeypatch, status(figures={pulled: 1000.0}), status(figures={pulled: 1_235_567.0}))
    live.refresh()
    live.refresh()
    text = text_of([ended, live])
    assert "\nz z: step 9: no step is known\n" in text and text.startswith("a: step 5\n")
    assert "pulled 1.23 MB/s" in text and ", 1.05 MB of memory" in text
