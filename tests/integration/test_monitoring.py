"""Figures for Prometheus of real processes, asked for while they train."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tests.integration.fabric_worker import NumpyWorker
from tests.integration.udp import CREDENTIALS, remote, train, udp_server, udp_switch
from tests.unit.test_exposition import asked
from tests.unit.test_loggers import events as scalars

import luwu
from harness.network.namespaces import wait_until
from harness.training import finish, prepare_small_run, start_small_run, wait_for_line
from luwu.control import control_pb2 as pb
from luwu.control.status import ask_status
from luwu.integrations.prometheus import expose


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_luwu_train_tells_the_run_and_its_server(tmp_path: Path) -> None:
    prepare_small_run(tmp_path, workers=1)
    process = start_small_run(tmp_path, "told", "--metrics", ":0")
    line = wait_for_line(process, "figures")
    match = re.fullmatch(r"figures for Prometheus at http://127\.0\.0\.1:(\d+)/metrics\n", line)
    assert match is not None
    found: dict[tuple[str, str], float] = {}

    def trains() -> bool:
        found.update(asked(int(match[1])))
        return found.get(("luwu_train_step", ""), 0) > 0

    wait_until(trains, "a step is told")
    assert found["luwu_train_steps", ""] == 60
    assert found["luwu_server_step", ""] >= found["luwu_train_step", ""]
    assert 4 < found["luwu_train_loss", ""] < 7
    assert found["luwu_server_workers", ""] == found["luwu_server_workers_present", ""] == 1
    assert found["luwu_store_written_bytes_total", ""] > 0
    assert found["luwu_worker_behind_seconds", "0"] == 0
    assert found["luwu_train_alert", "loss_not_finite"] == 0
    code, _, error = finish(process, 300)
    assert code == 0, error


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_luwu_train_sends_each_step_to_tensorboard_and_goes_on(tmp_path: Path) -> None:
    prepare_small_run(tmp_path, workers=1)
    for steps in (6, 10):
        flags = ("--log", "tensorboard", "--steps", str(steps), "--eval-every", "5")
        code, _, error = finish(start_small_run(tmp_path, "logged", *flags), 300)
        assert code == 0, error
    rows = [json.loads(line) for line in (tmp_path / "logged" / "metrics.jsonl").read_text().splitlines()]
    found = scalars(tmp_path / "logged" / "tensorboard")
    losses = {step: value for step, name, value in found if name == "train/loss"}
    assert losses == {row["step"]: pytest.approx(row["loss"], rel=1e-6) for row in rows} and len(losses) == 10
    validations = {step: value for step, name, value in found if name == "validation/loss"}
    assert validations == {
        row["step"]: pytest.approx(row["validation_loss"], rel=1e-6) for row in rows if "validation_loss" in row
    }
    assert (7, "restart", 0.0) in found


@pytest.mark.timeout(60)
def test_a_logger_without_its_package_is_refused_before_the_run(tmp_path: Path) -> None:
    prepare_small_run(tmp_path, workers=1)
    code, _, error = finish(start_small_run(tmp_path, "none", "--log", "tensorbord"))
    assert code == 2
    assert "run.log" in error and "tensorboard, trackio, wandb" in error and "'tensorbord'" in error
    assert not (tmp_path / "none").exists()


def test_a_session_and_the_server_that_it_embeds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    with luwu.open(tmp_path / "run", memory="64MiB") as session, expose(session, ":0") as exposition:
        assert asked(exposition.port)["luwu_session_step", ""] == 0
        luwu.parallelize(model, session, blocks=[torch.nn.Linear])
        optimizer = luwu.AdamW(model, lr=1e-3)
        for _ in range(2):
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
        found = asked(exposition.port)
    assert found["luwu_session_step", ""] == found["luwu_server_step", ""] == 2
    assert found["luwu_session_pushed_bytes_total", ""] == found["luwu_server_pushed_bytes_total", ""] > 0
    assert found["luwu_server_attempts", ""] == 2
    assert found["luwu_store_write_seconds_total", ""] > 0


def test_a_switch_tells_its_packets(tmp_path: Path) -> None:
    found: dict[tuple[str, str], float] = {}
    looks: list[pb.StatusReply] = []
    with udp_server(tmp_path / "store", 2, switches=1) as server, udp_switch(server.url, "s", metrics=":0") as switch:
        assert ("luwu_switch_packets_in_total", "") not in asked(switch.metrics_port)  # between runs

        def work(worker: NumpyWorker) -> None:
            assert worker.step() and worker.step()
            if worker.session.rank == 0:
                found.update(asked(switch.metrics_port))
                looks.append(ask_status(server.url, CREDENTIALS, look=True))

        train(remote(server.url, 2), 2, work, coarse=True)
    assert found["luwu_switch_packets_in_total", ""] > 0 and found["luwu_switch_packets_out_total", ""] > 0
    assert found["luwu_switch_sums_total", ""] > 0 and found["luwu_switch_sent_bytes_total", ""] > 0
    assert ("luwu_switch_kernel_packets_in_total", "") not in found
    (seen,) = looks[-1].switches
    assert (seen.name, seen.parent) == ("switch s", "") and seen.address.startswith("127.0.0.1:")
    figures = looks[-1].figures
    assert figures["luwu_server_packets_out_total"] > 0 and "luwu_server_packets_again_total" in figures
