"""torchrun that loses a node: the run goes on with the workers that are there."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from tests.integration.network import KEY, ServerProcess
from tests.integration.small_run import children_of

import luwu
from harness.network.namespaces import wait_until
from harness.ports import free_ports
from harness.torchrun import ENVIRONMENT, elastic_node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import os, sys, time
from pathlib import Path
import luwu
from tests.integration.test_torchrun import train

folder = Path(sys.argv[2])

def pass_gate(session):
    gate = folder / f"gate-{session.step}"
    if session.step == 10:
        (folder / f"at-{session.step}-{session.rank}-of-{session.workers}").touch()
        while not gate.exists():
            time.sleep(0.02)

with luwu.connect(sys.argv[1]) as session:
    values = train(session, pass_gate)
    if session.rank == 0:
        import torch
        torch.save(values, folder / "values.pt")
"""
ROWS = 6


def train(session, pass_gate=lambda session: None):
    """Train a small model to step 30 and return its values; the samples of a step are divided among the workers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    luwu.parallelize(model, session)
    optimizer = luwu.AdamW(model, lr=1e-2)
    while session.step < 30:
        pass_gate(session)
        batch = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(session.step))
        share = batch[session.rank :: session.workers]
        (model(share).square().mean() * len(share) * session.workers / ROWS).backward()
        optimizer.step()
    return luwu.full_state_dict(model)


@pytest.fixture
def start_node(tmp_path):
    """Start torchrun as on a node of a job that has one node or two."""
    (port,), script = free_ports(1), tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "job.key").write_text(KEY)
    environment = os.environ | ENVIRONMENT | {
        "LUWU_JOB_KEY_FILE": str(tmp_path / "job.key"), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    nodes = []

    def start(url, *, first):
        command = elastic_node(port, str(script), url, str(tmp_path), first=first)
        log = (tmp_path / f"node-{len(nodes)}.log").open("w")
        nodes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        log.close()
        return nodes[-1]

    yield start
    for node in nodes:
        if node.poll() is None:
            kill(node)


def kill(node):
    """Kill a node: torchrun first, so that it starts no worker again."""
    workers = children_of(node.pid)
    node.kill()
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    node.wait()


def wait_for(path, *nodes):
    def is_there():
        assert all(node.poll() is None for node in nodes), [log.read_text() for log in path.parent.glob("*.log")]
        return path.exists()

    wait_until(is_there, path.name, 150)


def test_a_run_goes_on_with_the_nodes_that_are_there(tmp_path, start_node):
    with ServerProcess(tmp_path / "store", 2, "--min-workers", "1") as server:
        stays = start_node(server.url, first=True)
        alone = tmp_path / "at-10-0-of-1"
        wait_for(alone, stays)
        alone.unlink()
        goes = start_node(server.url, first=False)  # all start again, with both
        for rank in (0, 1):
            wait_for(tmp_path / f"at-10-{rank}-of-2", stays, goes)
        kill(goes)
        (tmp_path / "gate-10").touch()
        assert stays.wait(150) == 0
        assert alone.exists()
    values = torch.load(tmp_path / "values.pt")
    with luwu.open(tmp_path / "alone", memory="64MiB") as session:
        alone = train(session)
    assert values.keys() == alone.keys()
    for name, value in values.items():
        torch.testing.assert_close(value, alone[name], rtol=1e-5, atol=1e-6)
