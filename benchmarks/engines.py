"""A worker is killed in a job of each engine: torchrun with a range of nodes, Slurm, Ray Train. Does the run go on?

Two workers of `harness.cluster_training` wait in the middle of a step, in jobs of engines that really run here: two
torchruns that meet, Slurm's daemons for two nodes, Ray. Worker 1 is killed. Slurm and Ray start it again, and the other
one stays; torchrun, whose second node is killed, starts the other one again. The model must be that of a job that
nobody disturbed: bit for bit, or within rounding where the number of workers changed.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from kit.common import PROGRAMS, ROOT, BenchmarkError, NotInstalledError, Row, arguments, result, run, table
from kit.processes import in_a_session

from harness.cluster_training import is_same, processes_at_gate
from harness.ports import free_ports
from harness.slurm import slurm_cluster, why_no_slurm
from harness.torchrun import ENVIRONMENT as TORCHRUN
from harness.torchrun import elastic_node
from luwu.control.credentials import Credentials
from luwu.core.words import counted
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings

NAME = "engines"
BAR = "torchrun elastic, Ray, Slurm: worker killed, run goes on; each real, on this machine"
UNIT = "seconds from a kill until the step is committed, at worst"
KEY = "0123456789abcdef0123456789abcdef"
PATIENCE_SECONDS = 180.0
POLL_SECONDS = 0.02

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --exclusive --no-kill
exec {python} -m luwu.cli launch slurm --server "--store {folder}/store --memory 64MiB" \\
    -- {python} -m harness.cluster_training {folder}
"""

Started = tuple[Callable[[], bool], Callable[[], None]]
"""Two functions of a job: one says whether it runs, and the other kills its worker 1."""

Engine = Callable[[Path], Any]
"""Context manager that starts a job which trains in a folder, and yields its functions."""


def wait_until(is_so: Callable[[], bool], runs: Callable[[], bool], folder: Path, what: str) -> None:
    """Raise BenchmarkError where it is not so in time, or the job ends before."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > end or not runs():
            why = "took too long" if runs() else "has ended"
            raise BenchmarkError(f"{what}: the job {why}\n{(folder / 'output').read_text()[-4000:]}")
        time.sleep(POLL_SECONDS)


def kill_worker(folder: Path) -> None:
    """Kill worker 1."""
    os.kill(processes_at_gate(folder)[1], signal.SIGKILL)


@contextmanager
def by_torchrun(folder: Path) -> Iterator[Started]:
    """Run a torchrun for each of two nodes, beside a server; the second one is what is killed."""
    (port,) = free_ports(1)
    settings = ServerSettings(
        stores=(folder / "store",), workers=2, min_workers=1, listen="127.0.0.1:0", memory=64 << 20
    )
    with ExitStack() as stack:
        server = stack.enter_context(NetworkServer(settings, Credentials(KEY.encode())))
        environment = ENVIRONMENT | TORCHRUN | {"LUWU_JOB_KEY": KEY, "LUWU_SERVER": server.url}
        program = ("-m", "harness.cluster_training", str(folder))
        nodes = [
            stack.enter_context(in_a_session(elastic_node(port, *program, first=first), environment, folder / "output"))
            for first in (True, False)
        ]

        def kill() -> None:
            os.killpg(nodes[1].pid, signal.SIGKILL)
            nodes[1].wait()
            kill_worker(folder)  # torchrun puts workers into sessions of their own

        try:
            yield lambda: nodes[0].poll() is None, kill
        finally:  # workers of a torchrun that was killed wait on
            for process in processes_at_gate(folder).values():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


@contextmanager
def by_slurm(folder: Path) -> Iterator[Started]:
    """Submit a job of two nodes to a Slurm of this machine."""
    if why := why_no_slurm():
        raise NotInstalledError(why)
    script = folder / "job.sh"
    script.write_text(SCRIPT.format(python=sys.executable, folder=folder))
    with ExitStack() as stack:
        own = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-"))  # a socket's path has a bound
        cluster = stack.enter_context(slurm_cluster(Path(own), 2))
        cluster.environment |= ENVIRONMENT
        job = cluster.submit(script, folder / "output")
        yield lambda: not cluster.has_ended(job), lambda: kill_worker(folder)


@contextmanager
def by_ray(folder: Path) -> Iterator[Started]:
    """Run Ray Train with two workers."""
    python = ROOT / "build" / "clusters" / "bin" / "python"
    if not python.exists():
        raise NotInstalledError(f"Ray is not installed ({python} is missing): run tools/clusters.sh")
    command = [str(python), str(PROGRAMS / "ours" / "ray_train.py"), str(folder)]
    with in_a_session(command, ENVIRONMENT, folder / "output") as process:
        yield lambda: process.poll() is None, lambda: kill_worker(folder)


ENGINES: Mapping[str, tuple[Engine, bool]] = {
    "torchrun": (by_torchrun, False), "Slurm": (by_slurm, True), "Ray": (by_ray, True)
}  # fmt: skip
"""The engines, and whether one starts a worker again while the other stays."""


def play(engine: Engine, folder: Path, kills: bool, stays: bool) -> tuple[dict[str, Any], float]:
    """Run a job, in which a worker is killed or none; return the model, and the seconds until the step is committed."""
    folder.mkdir()
    seconds = 0.0
    with engine(folder) as (runs, kill):
        wait_until(lambda: len(processes_at_gate(folder)) == 2, runs, folder, "the middle of a step")
        other, began = processes_at_gate(folder)[0], time.monotonic()
        if kills:
            kill()
        (folder / "gate").touch()
        if kills:
            wait_until((folder / "passed").exists, runs, folder, "the step that a worker was killed in")
            seconds = time.monotonic() - began
            if (processes_at_gate(folder)[0] == other) != stays:
                raise BenchmarkError(f"the other worker {'was started again' if stays else 'stayed'}")
        wait_until(lambda: not runs(), lambda: True, folder, "the end of the job")
        wait_until((folder / "values.pt").exists, lambda: False, folder, "the model")
    return torch.load(folder / "values.pt"), seconds


def is_as_good(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], bits: bool) -> bool:
    """Compare two models, bit for bit or within rounding."""
    if bits:
        return is_same(found, expected)
    return all(torch.allclose(found[name], value, rtol=1e-5, atol=1e-6) for name, value in expected.items())


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for name, one in found["engines"].items():
        how = "the other one stayed" if one["stays"] else "started again with one worker"
        yield (
            f"a worker killed in {counted(one['kills'], 'job')} of {name}",
            f"{how}; the step committed {max(one['back_seconds']):.1f} s later, at worst; the undisturbed job's "
            + ("bits" if one["stays"] else "model within 1e-5"),
            "-",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    jobs = options.size(3, quick=1, check=1)

    def measure() -> dict[str, Any]:
        details: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            for name, (engine, stays) in ENGINES.items():
                try:
                    calm, _ = play(engine, Path(folder) / f"calm-{name}", False, stays)
                    killed = [play(engine, Path(folder) / f"{name}-{number}", True, stays) for number in range(jobs)]
                except NotInstalledError as error:
                    options.leave_out(name, error)
                    continue
                details[name] = {
                    "kills": jobs, "stays": stays, "back_seconds": [seconds for _, seconds in killed],
                    "same": all(is_as_good(model, calm, stays) for model, _ in killed),
                }  # fmt: skip
        table(
            ["engine", "jobs", "the other worker", "committed after s, worst", "the undisturbed job's model"],
            [
                [name, one["kills"], "stays" if one["stays"] else "starts again", max(one["back_seconds"]),
                 str(one["same"])]
                for name, one in details.items()
            ],
        )  # fmt: skip
        right = all(one["same"] for one in details.values())
        worst = max((max(one["back_seconds"]) for one in details.values()), default=None)
        return result(
            NAME, ours=worst, peer=None, bar=BAR, ok=set(details) == set(ENGINES), right=right, unit=UNIT,
            details={"engines": details},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
