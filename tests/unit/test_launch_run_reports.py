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
from luwu.launch.settings import Settings


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
