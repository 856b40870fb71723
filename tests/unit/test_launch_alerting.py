"""Alerts of a run: where each of them shows, and what is looked at when."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.unit.test_alerts import attempt

from harness.small_disk import SmallDisk
from luwu.core.room import append_line
from luwu.launch import alerting
from luwu.launch.alerting import RunAlerts, one_of_each_disk
from luwu.launch.folder import RunFolder
from luwu.launch.settings import Settings, build_settings


class Watched:
    """A run whose time, server and display are a test's."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self.now = 0.0
        self.display = Mock()
        self.server = Mock(**{"stats.return_value": {}, "behind.return_value": {}})
        self.folder = RunFolder(folder)
        self.alerts = RunAlerts(
            settings or Settings(), self.folder, self.display, lambda: self.server, lambda: self.now
        )  # fmt: skip

    def look_at(self, now: float, *, training: bool = True) -> None:
        self.now = now
        self.alerts.look(training=training)

    @property
    def said(self) -> list[str]:
        return [call.args[0] for call in self.display.say.call_args_list]

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.folder.alerts_path.read_text().splitlines()]


def test_a_worker_that_lags_is_said_written_and_shown(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.alerts.attempt(attempt(step=12))
    run.server.behind.return_value = {"0": 0.0, "1": 61.0}
    run.look_at(61)
    run.look_at(62)
    assert run.alerts.standing()["worker_lagging"] == 1 and sum(run.alerts.standing().values()) == 1
    (sentence,) = run.display.alerts.call_args.args[0].values()
    run.server.behind.return_value = {"0": 0.0, "1": 0.0}
    run.look_at(200)
    assert run.said == [
        "alert raised: the others have waited for worker 1 for 61 s", "alert cleared: no worker is waited for any more"
    ]  # fmt: skip
    assert sentence == "since step 12: the others have waited for worker 1 for 61 s"
    assert [(row["name"], row["state"], row["step"]) for row in run.rows] == [
        ("run_started", "started", 12), ("worker_lagging", "raised", 12), ("worker_lagging", "cleared", 12)
    ]  # fmt: skip
    assert run.rows[0]["run"] == tmp_path.name and run.rows[0]["folder"] == str(tmp_path)
    assert not any(run.alerts.standing().values()) and not run.display.alerts.call_args.args[0]


def test_each_start_has_one_line_before_its_alerts(tmp_path: Path) -> None:
    first, second, failing = Watched(tmp_path), Watched(tmp_path), Watched(tmp_path)
    first.alerts.begin(3)
    first.alerts.validated(4, float("nan"))
    second.alerts.validated(0, float("nan"))  # as a disk that fills before there is a worker
    second.alerts.begin(5)
    failing.alerts.failed(6, "no power")
    assert [(row["name"], row["state"], row["step"]) for row in first.rows] == [
        ("run_started", "started", 3), ("loss_not_finite", "raised", 3),
        ("run_started", "started", 0), ("loss_not_finite", "raised", 0),
        ("run_failed", "raised", 6),
    ]  # fmt: skip
    assert not any("start" in words for run in (first, second, failing) for words in run.said)


def test_durable_steps_are_looked_at_while_the_run_trains_alone(tmp_path: Path) -> None:
    run = Watched(tmp_path)
    run.server.stats.return_value = {"since_commit_seconds": 2000.0, "unwritten": 4}
    run.look_at(10, training=False)
    assert not run.said
    run.look_at(10.5)  # too early
    assert not run.said
    run.look_at(11)
    assert run.said == ["alert raised: no step has become durable for 33.3 min, and 4 of them are in memory alone"]


def test_disks_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def disk_usage(folder: Path) -> Mock:
        looked.append(folder)
        return Mock(free=5, total=1000)

    monkeypatch.setattr(alerting.shutil, "disk_usage", disk_usage)
    run = Watched(tmp_path)
    for now in (5, 10, 11, 19, 20):
        run.look_at(now)
    assert looked == [tmp_path, tmp_path]
    assert run.said == [f"alert raised: the disk of {tmp_path} is nearly full: 5 B of 1 kB are free"]
    run.alerts.look_at_disks()
    assert len(looked) == 3  # at once
    run.look_at(29)
    assert len(looked) == 3
    assert one_of_each_disk([tmp_path, tmp_path / "none", Path("/proc")]) == [tmp_path, Path("/proc")]


def test_an_alert_that_a_full_disk_has_no_room_for_takes_no_other_with_it(small_disk: SmallDisk) -> None:
    path = small_disk.path / "alerts.jsonl"
    append_line(path, json.dumps({"text": "a" * 3970}))
    small_disk.fill()
    append_line(path, json.dumps({"text": "b" * 200}))  # there is room for less of it
    small_disk.clear()
    append_line(path, json.dumps({"text": "c"}))
    assert [json.loads(line)["text"][0] for line in path.read_text().splitlines()] == ["a", "c"]


def test_a_run_goes_on_without_a_file_of_alerts_and_without_a_command(tmp_path: Path) -> None:
    run = Watched(tmp_path / "gone", build_settings({"run": {"on_alert": "sh -c 'exit 7'"}}))
    run.alerts.validated(3, float("nan"))
    run.alerts.close()
    assert run.said == [
        "alert raised: the validation loss is not finite (nan) after step 3",
        "on-alert: sh has failed: exit status 7; alerts.jsonl has all alerts",
    ]
