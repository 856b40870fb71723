"""Alerts of a real `luwu train` whose loss becomes not finite."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from tests.unit.test_exposition import asked

from harness.network.namespaces import wait_until
from harness.training import finish, prepare_small_run, start_small_run, wait_for_line


@pytest.mark.timeout(300)
def test_a_loss_that_is_not_finite_is_told_everywhere_and_once(tmp_path: Path) -> None:
    prepare_small_run(tmp_path, workers=1)
    told = tmp_path / "told"
    process = start_small_run(
        tmp_path, "run", "--lr", "1e30", "--metrics", ":0", "--on-alert", f"tee -a {told} {tmp_path}/no/such/folder"
    )
    port = int(re.findall(r":(\d+)/", wait_for_line(process, "figures"))[0])
    line = wait_for_line(process, "alert raised")
    wait_until(told.exists, "the command has run")
    assert asked(port)["luwu_train_alert", "loss_not_finite"] == 1
    assert asked(port)["luwu_train_alert", "worker_lagging"] == 0
    wait_for_line(process, "on-alert: tee")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    code, output, error = finish(process)
    assert code == 130 and "alert" not in output and not error
    (alert,) = [json.loads(each) for each in (tmp_path / "run" / "alerts.jsonl").read_text().splitlines()]
    assert json.loads(told.read_text()) == alert
    assert line == f"alert raised: {alert['text']}\n" and "not finite" in line
    assert (alert["name"], alert["state"], alert["run"]) == ("loss_not_finite", "raised", "run")
