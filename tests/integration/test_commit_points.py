"""Runs that put some of their steps on the disk: killed, stopped, over the network, and with several servers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.test_network_servers import WORKERS, servers, url_of
from tests.integration.udp import remote
from tests.integration.udp import train as train_workers
from tests.unit.network_serving import KEY, QUICK

from harness.training import finish, prepare_small_run, start_small_run, steps_of, wait_for_steps
from luwu.cli.status import lines_of
from luwu.control.status import ask_local_status
from luwu.errors import ConfigError
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.session.remote import RemoteSession

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import os, signal, sys
import torch
import luwu

def train(session, model, until, end):
    optimizer = luwu.AdamW(model, lr=1e-2)
    while session.step < until:
        torch.manual_seed(session.step)
        loss = (model(torch.randn(4, 32)) - 1).square().mean()
        loss.backward()
        optimizer.step(wait="durable" if end == "durable" and session.step == until - 1 else "answer")
        optimizer.zero_grad()
        print(session.step, float(loss).hex(), flush=True)

folder, durable, until, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
torch.manual_seed(0)
session = luwu.open(folder, durable=durable, memory="64MiB")
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
model = luwu.parallelize(model, session, blocks=[torch.nn.Linear])
print("at", session.step, flush=True)
train(session, model, until, end)
if end == "snapshot":
    print("snapshot", session.snapshot(), flush=True)
if end == "close":
    session.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def train(folder: Path, durable: str, until: int, end: str) -> tuple[list[str], list[str]]:
    """Run the program above to a step; return where it began, and its losses, and what it said after."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), durable, str(until), end],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if end == "close" else -signal.SIGKILL), done.stderr
    lines = done.stdout.splitlines()
    return [lines[0], *(line for line in lines if line.startswith("snapshot"))], [
        line for line in lines if line[0].isdigit()
    ]


def test_a_killed_process_is_at_its_last_commit_point_and_a_closed_one_at_its_last_step(tmp_path: Path) -> None:
    _, expected = train(tmp_path / "each", "step", 15, "close")
    _, before = train(tmp_path / "some", "4 steps", 10, "kill")
    (at, snapshot), after = train(tmp_path / "some", "stop", 12, "snapshot")
    assert (at, snapshot) == ("at 8", "snapshot 12")
    (at,), end = train(tmp_path / "some", "1 h", 13, "close")
    assert at == "at 12"  # the snapshot put it on the disk
    (at,), awaited = train(tmp_path / "some", "stop", 14, "durable")
    assert at == "at 13"
    (at,), last = train(tmp_path / "some", "step", 15, "close")
    assert at == "at 14"  # it was killed after it had waited for the disk
    assert before == expected[:10]
    assert after + end + awaited + last == expected[8:]


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_workers_wait_until_all_servers_have_the_last_step_on_the_disk(tmp_path: Path, transport: str) -> None:
    with servers(tmp_path, 2, transport, durable="stop") as found:

        def work(worker: NumpyWorker) -> list[int]:
            assert all(worker.step() for _ in range(3))
            durable = [worker.session.wait_durable()] if worker.session.rank else []
            if worker.session.rank:
                assert [server.stats()["unwritten"] for server in found] == [0, 0]
            return durable

        assert train_workers(remote(url_of(*found), WORKERS), WORKERS, work, coarse=True) == [[], [3]]


@pytest.mark.slow
def test_luwu_train_is_killed_between_commit_points_and_makes_the_steps_again(tmp_path: Path) -> None:
    prepare_small_run(tmp_path, workers=1)
    code, _, error = finish(start_small_run(tmp_path, "undisturbed"))
    assert code == 0, error
    process = start_small_run(tmp_path, "killed", "--durable", "25 steps")
    wait_for_steps(tmp_path, "killed", 30)
    process.kill()
    process.communicate()
    code, output, error = finish(start_small_run(tmp_path, "killed"))
    assert code == 0, error
    assert "resuming after step 25 of 60" in output or "resuming after step 50 of 60" in output
    assert steps_of(tmp_path, "killed") == steps_of(tmp_path, "undisturbed")


@pytest.mark.slow
def test_ctrl_c_puts_the_last_step_on_the_disk(tmp_path: Path) -> None:
    prepare_small_run(tmp_path, workers=1)
    process = start_small_run(tmp_path, "stopped", "--durable", "stop")
    wait_for_steps(tmp_path, "stopped", 5)
    (line,) = (line for line in lines_of(ask_local_status(tmp_path / "stopped")) if line.startswith("last on"))
    assert line.startswith("last on the disk: step 0, ")
    process.send_signal(signal.SIGINT)
    code, output, error = finish(process)
    assert code == 130, error
    made = len(steps_of(tmp_path, "stopped"))
    code, output, error = finish(start_small_run(tmp_path, "stopped"))
    assert code == 0, error
    assert f"resuming after step {made} of 60" in output


def test_one_of_several_servers_has_no_clock_for_commit_points(tmp_path: Path) -> None:
    settings = [
        ServerSettings(stores=(tmp_path / name,), workers=1, listen="127.0.0.1:0", durable="5 min") for name in "ab"
    ]
    with NetworkServer(settings[0], KEY, QUICK) as first, NetworkServer(settings[1], KEY, QUICK) as second:
        url = f"{first.url},{second.url.removeprefix('luwu://')}"
        with (
            pytest.raises(ConfigError, match="durable: expected steps or stop for one of 2 servers, found '5 min'"),
            RemoteSession(url, 0, 1, KEY, QUICK) as session,
        ):
            session.attach(small_manifest())
