"""A run that ends with an error, or by itself before its last step, is told as an alert; one that is stopped is not."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from luwu.errors import LuwuError, StoreSpaceError
from luwu.launch import returning
from luwu.launch.folder import RunFolder
from luwu.launch.job import CredentialFiles
from luwu.launch.outcome import Outcome
from luwu.launch.settings import build_settings
from luwu.store.opening import lock_folder


def told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, end: Outcome | Exception, *, interrupted: bool, begun: bool = True
) -> str:
    """Return what the command of `--on-alert` was told when the run had ended."""

    def run(interrupts: object) -> Outcome:
        if interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        if isinstance(end, Exception):
            raise end
        return end

    one = SimpleNamespace(run=run, outcome=Outcome(step=7), taken=SimpleNamespace(begun=begun))
    monkeypatch.setattr(returning, "LocalRun", lambda *_, **__: one)
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


@pytest.mark.parametrize("end", [FULL, Outcome(step=0, stopped=True)])
def test_a_command_that_fails_before_it_trains_is_no_failure_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Outcome | Exception
) -> None:
    assert told(tmp_path, monkeypatch, end, interrupted=False, begun=False) == ""
    assert not (tmp_path / "alerts.jsonl").exists()


@pytest.mark.parametrize("metrics", ["", "a port that is taken"])
def test_a_second_command_leaves_a_run_alone(tmp_path: Path, metrics: str) -> None:
    folder, display = RunFolder(tmp_path), Mock()
    with socket.socket() as taken, nullcontext() if metrics else closing(lock_folder(tmp_path, "run folder")):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        values = {"metrics": f"127.0.0.1:{taken.getsockname()[1]}"} if metrics else {}
        with pytest.raises(LuwuError, match="in use"):
            arguments = (build_settings({"run": values}), folder, display, None)
            returning.run_job(*arguments, takes_weights=False, credentials=CredentialFiles())
    assert [path.name for path in tmp_path.iterdir()] == ["luwu.lock"]
    assert not any("alert" in str(call) for call in display.say.call_args_list)
