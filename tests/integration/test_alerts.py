"""Alerts of a real `luwu train` whose loss becomes not finite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.training import finish, prepare_small_run, start_small_run


@pytest.mark.timeout(300)
def test_a_loss_that_is_not_finite_is_told_everywhere_and_once(tmp_path: Path) -> None:
    prepare_small_run(tmp_path, workers=1)
    told = tmp_path / "told"
    process = start_small_run(tmp_path, "run", "--lr", "1e30", "--on-alert", f"tee -a {told} {tmp_path}/no/folder")
    code, output, error = finish(process)  # some attempts in a row are rolled back, and then the run ends
    assert code == 1 and "expected finite values" in error
    lines = output.splitlines()
    start, *alerts = [json.loads(each) for each in (tmp_path / "run" / "alerts.jsonl").read_text().splitlines()]
    assert start["state"] == "started"
    found = [(alert["name"], alert["state"], alert["run"]) for alert in alerts]
    assert found == [("loss_not_finite", "raised", "run"), ("run_failed", "raised", "run")]
    assert told.read_text().replace("}{", "}\n{").splitlines() == [json.dumps(alert) for alert in alerts]
    shown = [each for each in lines if each.startswith("alert ")]
    assert shown == [f"alert raised: {alert['text']}" for alert in alerts]
    failures = [each for each in lines if each.startswith("on-alert: ")]
    assert failures
    assert all(failure.startswith("on-alert: tee has failed: exit status 1: tee: ") for failure in failures)
