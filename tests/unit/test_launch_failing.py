"""A run that ends with an error, or by itself before its last step, is told as an alert; one that is stopped is not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from luwu.errors import StoreSpaceError
from luwu.launch import returning
from luwu.launch.folder import RunFolder
from luwu.launch.job import CredentialFiles
from luwu.launch.outcome import Outcome
from luwu.launch.settings import build_settings


def told(folder: Path, monkeypatch: pytest.MonkeyPatch, end: Outcome | Exception, *, interrupted: bool) -> str:
    """Return what the command of `--on-alert` was told when the run had ended."""

    def run(interrupts: object) -> Outcome:
        if interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(returning, "LocalRun", lambda *_, **__: SimpleNamespace(run=run, outcome=Outcome(step=7)))
    heard, script = folder / "heard", folder / "tell.sh"
    script.write_text(f'echo "$LUWU_ALERT_NAME $LUWU_ALERT_STEP: $LUWU_ALERT_TEXT" >> {heard}\n')
    settings = build_settings({"run": {"on_alert": f"sh {script}"}})
    arguments = (settings, RunFolder(folder), Mock(), None)
    try:
        returning.run_job(*arguments, takes_weights=False, credentials=CredentialFiles())
    except StoreSpaceError as error:
        assert error is end
    return heard.read_text() if heard.exists() else ""


FULL = StoreSpaceError("the disk is full; make room")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (FULL, "run_failed 7: the run has failed after step 7: the disk is full\n"),
        (
            Outcome(step=9, stopped=True),
            "run_failed 9: the run has failed after step 9: it has ended, and was not stopped here\n",
        ),
        (Outcome(step=9), ""),
    ],
)
def test_a_failure_is_told_before_the_command_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Outcome | Exception, expected: str
) -> None:
    assert told(tmp_path, monkeypatch, end, interrupted=False) == expected
    alerts = tmp_path / "alerts.jsonl"
    names = [json.loads(line)["name"] for line in alerts.read_text().splitlines()] if alerts.exists() else []
    assert names == (["run_failed"] if expected else [])


@pytest.mark.parametrize("end", [FULL, Outcome(step=9, stopped=True)])
def test_a_run_that_a_person_stops_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Outcome | Exception
) -> None:
    assert told(tmp_path, monkeypatch, end, interrupted=True) == ""
    assert not (tmp_path / "alerts.jsonl").exists()
