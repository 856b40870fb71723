"""`luwu launch slurm` with a real server and workers, and stand-ins for the four commands of Slurm that it calls.

`tests/clusters` has the same with a real Slurm, and shows that the stand-ins answer as it does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from harness.cluster_training import is_same, processes_at_gate
from harness.network.namespaces import wait_until
from harness.warm import start_program

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]

COMMANDS = {
    "srun": """
while [[ $1 == --* ]]; do
    case $1 in
        --job-name=*) name=${1#*=} ;;
        --nodelist=*) node=${1#*=} ;;
    esac
    shift
done
[[ -v SLURM_GPUS || -v SLURM_EXPORT_ENV ]] && { echo "srun follows what is about the whole job"; exit 1; }
[[ $name == luwu-server ]] && echo "a word of the site"
echo $$ > "$SLURM_FOLDER/step-$name"
echo "$name $node" >> "$SLURM_FOLDER/started"
exec "$@"
""",
    "squeue": """
if [[ $1 == --steps ]]; then
    for step in "$SLURM_FOLDER"/step-*; do echo "7.$(<"$step") ${step##*/step-}"; done
else
    cat "$SLURM_FOLDER/nodes"
fi
""",
    "scancel": 'kill "${1/--signal=/-}" "${2#7.}"',
    "scontrol": """
case "$1 $2" in
    "show hostnames") tr , '\\n' <<< "$3" ;;
    "show node") echo "NodeName=$3 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=$3" ;;
    requeue\\ *) [[ -e $SLURM_FOLDER/refuses ]] && { echo "Requested operation is disabled" >&2; exit 1; }
        echo "$2" > "$SLURM_FOLDER/requeued" ;;
esac
""",
}


class Job:
    """A job of Slurm whose folder says which nodes it has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in COMMANDS.items():
            command = folder / "bin" / name
            command.parent.mkdir(exist_ok=True)
            command.write_text(f"#!/bin/bash\n{text}")
            command.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_FOLDER": str(folder), "SLURM_JOB_ID": "7",
            "PYTHONPATH": str(ROOT), "SLURM_GPUS": "4", "SLURM_EXPORT_ENV": "NONE",
        }  # fmt: skip

    def start(self, nodes: str, *options: str) -> None:
        """Start the training on the nodes, which are separated by commas."""
        (self.folder / "nodes").write_text(nodes)
        program = [sys.executable, "-m", "harness.cluster_training", str(self.folder)]
        with (self.folder / "output").open("w") as output:
            self.process = start_program(
                [sys.executable, "-m", "luwu.cli", "launch", "slurm", *options, "--server",
                 f"--store '{self.folder}/store' --memory 64MiB", "--", *program],
                env=self.environment | {"SLURM_JOB_NODELIST": nodes}, stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def started(self) -> list[str]:
        """Return the steps that were started, each as its name and its node, in no order: they start at once."""
        return sorted((self.folder / "started").read_text().splitlines())

    def wait_at_the_gate(self) -> None:
        """Return when both workers are in the middle of an attempt."""
        wait_until(lambda: len(processes_at_gate(self.folder)) == 2 or self.process.poll() is not None, "the gate", 100)
        assert self.process.poll() is None, self.output

    def kill_at_the_gate(self, rank: int) -> None:
        """Kill a worker in the middle of an attempt."""
        self.wait_at_the_gate()
        os.kill(int((self.folder / f"step-worker-{rank}").read_text()), signal.SIGKILL)

    def go_on(self) -> int:
        (self.folder / "gate").touch()
        return self.process.wait(100)

    def values(self) -> dict[str, torch.Tensor]:
        assert self.go_on() == 0, self.output
        return torch.load(self.folder / "values.pt")


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    jobs: list[Job] = []

    def make(name: str) -> Job:
        (tmp_path / name).mkdir()
        jobs.append(Job(tmp_path / name))
        return jobs[-1]

    yield make
    running = [job for job in jobs if job.process.poll() is None]
    for job in running:  # a test that fails leaves nothing behind
        job.process.terminate()
        job.process.wait(100)
    assert not running, running[0].output
    for job in jobs:
        for step in job.folder.glob("step-*"):
            assert not Path(f"/proc/{step.read_text().strip()}").exists(), f"{step.name} outlives the job"


@pytest.mark.slow
def test_a_worker_is_started_again_and_one_of_a_lost_node_elsewhere(make_job: Callable[[str], Job]) -> None:
    undisturbed = make_job("undisturbed")
    undisturbed.start("a,b")
    expected = undisturbed.values()
    assert undisturbed.started() == ["luwu-server a", "worker-0 a", "worker-1 b"]

    killed = make_job("killed")
    killed.start("a,b", "--server-node", "b")
    killed.kill_at_the_gate(1)
    wait_until(lambda: len(killed.started()) == 4, "another worker 1")
    assert is_same(killed.values(), expected)
    assert killed.started() == ["luwu-server b", "worker-0 a", "worker-1 b", "worker-1 b"]

    moved = make_job("moved")
    moved.start("a,b,c", "--spare-nodes", "1", "--restarts", "0")
    (moved.folder / "nodes").write_text("a,c")
    moved.kill_at_the_gate(1)
    wait_until(lambda: len(moved.started()) == 4, "another worker 1")
    assert is_same(moved.values(), expected)
    assert moved.started() == ["luwu-server a", "worker-0 a", "worker-1 b", "worker-1 c"]


@pytest.mark.slow
def test_a_job_that_cannot_go_on_is_queued_again_and_resumes(make_job: Callable[[str], Job]) -> None:
    job = make_job("job")
    job.start("a,b")
    (job.folder / "nodes").write_text("a")
    job.kill_at_the_gate(1)
    assert job.process.wait(100) == 0
    assert (job.folder / "requeued").read_text() == "7\n"
    assert "b is lost, and no spare node is left for worker 1; the job is queued again" in job.output
    for gate in job.folder.glob("at-gate-*"):
        gate.unlink()
    job.start("c", "--workers-per-node", "2")
    job.kill_at_the_gate(0)
    wait_until(lambda: job.output.count("starts worker 0 on") == 2, "another worker 0")
    job.process.send_signal(signal.SIGUSR1)
    assert job.process.wait(100) == 0
    assert "the job's time is over; the job is queued again" in job.output
    job.start("d")  # with another number of workers
    job.values()
    assert [step for step in job.started() if step.endswith(" d")] == ["luwu-server d", "worker-0 d"]


def test_a_job_that_slurm_does_not_queue_again_says_so(make_job: Callable[[str], Job]) -> None:
    job = make_job("job")
    (job.folder / "refuses").touch()
    job.start("a")
    wait_until(lambda: "starts worker 0" in job.output or job.process.poll() is not None, "a worker")
    job.process.send_signal(signal.SIGUSR1)
    assert job.process.wait(100) == 1
    assert "luwu: scontrol requeue 7: Requested operation is disabled" in job.output


def test_an_error_of_a_worker_or_the_server_is_the_jobs(make_job: Callable[[str], Job]) -> None:
    worker = make_job("worker")
    (worker.folder / "at-gate-0").mkdir()  # where it cannot write
    worker.start("a")
    assert worker.process.wait(100) == 1
    assert "IsADirectoryError" in worker.output and "worker 0 on a ended with status 1" in worker.output
    server = make_job("server")
    (server.folder / "store").touch()
    server.start("a")
    assert server.process.wait(100) != 0
    assert "the server on a ended with status" in server.output and server.started() == ["luwu-server a"]


@pytest.mark.slow
def test_a_job_whose_server_is_lost_is_queued_again_although_workers_end_with_errors(
    make_job: Callable[[str], Job],
) -> None:
    job = make_job("job")
    job.start("a,b", "--server-node", "b", "--workers-per-node", "1")
    job.wait_at_the_gate()
    (job.folder / "nodes").write_text("a")
    os.kill(int((job.folder / "step-luwu-server").read_text()), signal.SIGKILL)
    (job.folder / "gate").touch()
    assert job.process.wait(100) == 0, job.output
    assert "b, the server's node, is lost; the job is queued again" in job.output
    assert (job.folder / "requeued").exists()


def test_a_launcher_that_is_stopped_ends_its_steps(make_job: Callable[[str], Job]) -> None:
    job = make_job("job")
    job.start("a")
    wait_until(lambda: "starts worker 0" in job.output or job.process.poll() is not None, "a worker")
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(100) == 143
    assert "stopped by a signal" in job.output


@pytest.mark.parametrize(
    ("server", "environment", "message"),
    [
        ("--store 'x", {}, '--server "--store \'x": no closing quotation; close it'),
        ("--store x --key-file k", {}, "--server: expected no --key-file: workers would not know it;"),
        ("--store x --workers=3", {}, "--server: expected no --workers: there are as many as the job's nodes"),
        (
            "--store x",
            {"SLURM_GPUS_PER_TASK": "1"},
            "--gpus-per-task: expected GPUs for a node, found some for a task,",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(
    server: str, environment: dict[str, str], message: str, tmp_path: Path
) -> None:
    process = start_program(
        [sys.executable, "-m", "luwu.cli", "launch", "slurm", "--server", server, "--", "true"],
        env=Job(tmp_path).environment | {"SLURM_JOB_NODELIST": "a"} | environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.communicate(timeout=60)[1].startswith(f"luwu: {message}")
    assert process.returncode == 2


def test_outside_of_a_job_it_says_how_to_be_in_one() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    process = start_program(
        [sys.executable, "-m", "luwu.cli", "launch", "slurm", "--server", "--store x", "--", "true"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.communicate(timeout=60)[1].startswith(
        "luwu: SLURM_JOB_ID: expected in the environment, found nothing;"
    )
    assert process.returncode == 2
