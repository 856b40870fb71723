"""The workers' reports of a run, where they cannot be true."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from luwu.errors import WorkerLostError
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
