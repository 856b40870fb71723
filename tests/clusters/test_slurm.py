"""Jobs of a real Slurm that lose a worker, a node, or their time: losses are those of the undisturbed run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.cluster_training import is_same, processes_at_gate
from harness.network.namespaces import wait_until
from harness.slurm import SlurmCluster, slurm_cluster, why_no_slurm

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm()),
]

SCRIPT = """#!/bin/bash
#SBATCH --ntasks-per-node=1 --exclusive
#SBATCH --no-kill --requeue --open-mode=append
#SBATCH --signal=B:USR1@60
export PYTHONPATH={root} OMP_NUM_THREADS=1
exec {python} -m luwu.cli launch slurm {options} --server "--store {folder}/store --memory 64MiB" \\
    -- {python} -m harness.cluster_training {folder}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # a short path: that of a socket has a bound
    try:
        with slurm_cluster(folder, 4) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder)


class Job:
    """A submitted training."""

    def __init__(self, cluster: SlurmCluster, folder: Path, nodes: int, options: str = "") -> None:
        self.cluster, self.folder = cluster, folder
        script = folder / "job.sh"
        script.write_text(SCRIPT.format(root=ROOT, python=sys.executable, folder=folder, options=options))
        self.number = cluster.submit(script, folder / "output", f"--nodes={nodes}")

    @property
    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text() if path.exists() else "no output"

    def wait_at_the_gate(self) -> list[int]:
        """Return the processes of the two workers, once they are in the middle of an attempt."""
        wait_until(lambda: len(processes_at_gate(self.folder)) == 2 or self.has_ended(), "the workers at the gate", 120)
        assert not self.has_ended(), self.output
        return [process for _, process in sorted(processes_at_gate(self.folder).items())]

    def has_ended(self) -> bool:
        return self.cluster.has_ended(self.number)

    def values(self) -> dict[str, torch.Tensor]:
        """Open the gate, and return the model's values once the job has ended well."""
        (self.folder / "gate").touch()
        wait_until(self.has_ended, "the end of the job", 400)
        assert self.cluster.state(self.number) == "COMPLETED", self.output
        return torch.load(self.folder / "values.pt")

    def nodes_of(self, rank: int) -> list[str]:
        """Return the nodes that a worker was started on, in order."""
        return re.findall(rf"starts worker {rank} on (\w+)", self.output)


@pytest.fixture(scope="module")
def undisturbed(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    job = Job(cluster, tmp_path_factory.mktemp("undisturbed"), 2)
    values = job.values()
    assert len(job.nodes_of(0)) == len(job.nodes_of(1)) == 1 and job.nodes_of(0) != job.nodes_of(1)
    return values


def test_a_killed_worker_starts_again_where_it_was(
    cluster: SlurmCluster, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, 2)
    os.kill(job.wait_at_the_gate()[1], signal.SIGKILL)
    wait_until(lambda: len(job.nodes_of(1)) == 2, "another worker 1", 60)
    assert is_same(job.values(), undisturbed)
    assert len(set(job.nodes_of(1))) == len(job.nodes_of(0)) == 1


def test_the_workers_of_a_lost_node_move_to_a_spare_one(
    cluster: SlurmCluster, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, 3, "--spare-nodes 1")
    job.wait_at_the_gate()
    lost = job.nodes_of(1)[0]
    with cluster.node_lost(lost):
        wait_until(lambda: len(job.nodes_of(1)) == 2, "another worker 1", 90)
        assert is_same(job.values(), undisturbed)
        assert job.nodes_of(1)[1] not in {lost, *job.nodes_of(0)} and len(job.nodes_of(0)) == 1


def test_the_workers_of_a_node_that_shuts_down_move_to_a_spare_one(
    cluster: SlurmCluster, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """Its worker gets SIGTERM while Slurm still counts on the node, where nothing can be started any more."""
    job = Job(cluster, tmp_path, 3, "--spare-nodes 1 --restarts 1")
    worker = job.wait_at_the_gate()[1]
    lost = job.nodes_of(1)[0]
    with cluster.daemon_lost(lost):
        os.kill(worker, signal.SIGTERM)
        wait_until(lambda: job.nodes_of(1)[-1] != lost, "worker 1 on another node", 120)
        assert is_same(job.values(), undisturbed)
        assert len(job.nodes_of(0)) == 1


def test_a_job_is_queued_again_when_the_servers_node_is_lost(
    cluster: SlurmCluster, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """A worker elsewhere learns that the server is lost, and ends with an error, long before Slurm does."""
    job = Job(cluster, tmp_path, 3, '--spare-nodes 1 --server-node "$(scontrol show hostnames | tail -1)"')
    job.wait_at_the_gate()
    lost = re.findall(r"the server on (\w+) serves", job.output)[0]
    assert lost not in {*job.nodes_of(0), *job.nodes_of(1)}
    with cluster.node_lost(lost):
        assert is_same(job.values(), undisturbed)
        assert f"{lost}, the server's node, is lost; the job is queued again" in job.output


def test_a_job_without_a_spare_node_is_queued_again(
    cluster: SlurmCluster, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, 2)
    job.wait_at_the_gate()
    lost = job.nodes_of(1)[0]
    with cluster.node_lost(lost):
        assert is_same(job.values(), undisturbed)
        assert f"{lost} is lost, and no spare node is left for worker 1; the job is queued again" in job.output
        assert len(job.nodes_of(0)) == 2


def test_a_job_is_queued_again_when_the_node_of_its_script_is_lost(
    cluster: SlurmCluster, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, 2)
    job.wait_at_the_gate()
    lost = cluster.ask("scontrol", "show", "job", job.number).split("BatchHost=")[1].split()[0]
    with cluster.node_lost(lost):
        assert is_same(job.values(), undisturbed)
        assert len(job.nodes_of(0)) == len(job.nodes_of(1)) == 2


def test_a_job_whose_time_is_over_is_queued_again(
    cluster: SlurmCluster, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, 2)
    job.wait_at_the_gate()
    cluster.ask("scancel", "--batch", "--signal=USR1", job.number)
    assert is_same(job.values(), undisturbed)
    assert "the job's time is over; the job is queued again" in job.output
    assert len(job.nodes_of(0)) == len(job.nodes_of(1)) == 2


def test_a_worker_that_fails_by_itself_ends_the_job(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, 2)
    (tmp_path / "at-gate-1").mkdir()  # where it cannot write
    wait_until(job.has_ended, "the end of the job", 120)
    assert cluster.state(job.number) == "FAILED" and "IsADirectoryError" in job.output
    assert re.search(r"worker 1 on \w+ ended with status 1", job.output)
