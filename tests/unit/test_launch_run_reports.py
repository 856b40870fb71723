"""The workers' reports of a run, where they cannot be true, and its pauses."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from luwu.core.room import RoomWait
from luwu.errors import WorkerLostError
from luwu.launch import alerting
from luwu.launch.folder import RunFolder
from luwu.launch.run_reports import RunReports
from luwu.launch.settings import Settings, build_settings
from luwu.launch.words import checked_report
from luwu.observe.metrics import MetricsLog, read_metrics


def test_a_start_after_attempts_that_nobody_made_is_refused(tmp_path: Path) -> None:
    server = Mock(**{"stats.return_value": {"attempts": 3}})
    reports = RunReports(Settings(), RunFolder(tmp_path), Mock(), lambda: server, server_here=True, takes_weights=False)
    start = {"parameters": 1, "step": 3, "attempts": 1 << 62, "rolled_back": 0}
    with pytest.raises(WorkerLostError, match="worker 1: report of its start: expected at most 3 attempts"):
        reports.start(1, start)
    assert not reports.begun
    reports.start(1, start | {"attempts": 3})


def test_a_full_run_folder_is_shown_told_to_the_server_and_looked_at_as_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerting.shutil, "disk_usage", lambda folder: Mock(free=0, total=1000))
    server, display = Mock(), Mock()
    reports = RunReports(
        Settings(), RunFolder(tmp_path), display, lambda: server, server_here=True, takes_weights=False
    )
    wait = RoomWait(str(tmp_path), 722, 1e9)
    reports.pause_here(wait)
    server.note_wait.assert_called_once_with(wait)
    said = [call.args[0] for call in display.say.call_args_list]
    assert said == [str(wait), f"alert raised: the disk of {tmp_path} is nearly full: 0 B of 1 kB are free"]
    reports.pause_here(None)
    server.note_wait.assert_called_with(None)
    assert display.say.call_args.args == ("there is room again; it goes on",)


@pytest.mark.parametrize("eval_every", [0, 5])
def test_the_validation_loss_of_the_end_is_in_the_last_row(tmp_path: Path, eval_every: int) -> None:
    settings = build_settings({"run": {"steps": 3, "eval_every": eval_every}})
    reports = RunReports(settings, RunFolder(tmp_path), Mock(), Mock(), server_here=True, takes_weights=False)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"attempt": {step}, "step": {step}, "committed": true}}\n' for step in (2, 3)))
    metrics = MetricsLog(path)
    reports.open(metrics)  # type: ignore[arg-type]
    reports.results[0] = {"sequences": 4, "loss_sum": 10.0, "prompt": "", "sample": ""}
    reports.conclude()
    metrics.close()
    assert [row.get("validation_loss") for row in read_metrics(path)] == [None, 2.5]


@pytest.mark.parametrize(("before", "said"), [(120, True), (140, False), (None, False)])
def test_another_number_of_steps_is_said_to_change_the_learning_rate(
    tmp_path: Path, before: int | None, said: bool
) -> None:
    folder = RunFolder(tmp_path)
    if before is not None:
        folder.save_settings(build_settings({"run": {"steps": before}}))
    display, server = Mock(), Mock(**{"stats.return_value": {"attempts": 120}})
    settings = build_settings({"run": {"steps": 140}})
    reports = RunReports(settings, folder, display, lambda: server, server_here=True, takes_weights=False)
    folder.save_settings(settings)  # as the launcher does before a worker's start is taken
    reports.outcome.corpus = Mock(blank=0, train_tokens=9, unit="token")
    reports.open(Mock(**{"resume.return_value": ""}))
    reports.start(0, {"parameters": 1, "step": 120, "attempts": 120, "rolled_back": 0})
    words = [call.args[0] for call in display.say.call_args_list]
    assert any(text.startswith("resuming after step 120 of 140") for text in words)
    assert any("curve now ends at step 140 instead of 120" in text for text in words) == said


def test_the_run_knows_where_it_began_in_its_store(tmp_path: Path) -> None:
    server = Mock(**{"stats.return_value": {"attempts": 3}})
    reports = RunReports(Settings(), RunFolder(tmp_path), Mock(), lambda: server, server_here=True, takes_weights=True)
    reports.outcome.corpus = Mock(blank=0, train_tokens=9, unit="token")
    reports.open(Mock(**{"resume.return_value": ""}))
    start = {"parameters": 1, "step": 0, "attempts": 3, "rolled_back": 0, "first_step": 3000}
    reports.start(0, checked_report(0, {"kind": "start", **start}))
    assert (reports.outcome.step, reports.meter.first_step) == (0, 3000)
