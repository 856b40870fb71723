"""The Slurm job that this process is part of: its nodes, and steps in it, by Slurm's own commands."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from luwu.core.errors import ConfigError, ServerError

NOT_FOR_STEPS = (
    "SLURM_EXPORT_ENV", "SLURM_GPUS", "SLURM_LABELIO", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE",
    "SLURM_STDOUTMODE",
)  # fmt: skip
"""Variables of a job that srun would follow although they are about the whole job, or change what a step prints."""

AWAY = ("Unable to contact slurm controller", "Socket timed out")
"""Words of Slurm's commands where its controller does not answer; its jobs go on meanwhile."""

REQUEUE_TRIES = 12
TRY_SECONDS = 10.0

GUARD = """
while sleep 30; do
    nodes=$(squeue --noheader --jobs="$2" --format=%N) && [[ $nodes ]] || continue
    scontrol show hostnames "$nodes" | grep --quiet --line-regexp "$1" || exec scontrol requeue "$2"
done
"""
"""Shell script of a step on another node. It queues the job again when the node of the job's script is lost: with
``--no-kill`` Slurm lets such a job stay as it is, with nobody in it, until its time is over."""

log = logging.getLogger(__name__)


class Slurm:
    """The Slurm job that this process is part of.

    Raises:
        ConfigError: it is part of none, or of one whose steps cannot share the processors of a node.
    """

    def __init__(self) -> None:
        try:
            self.job, listed = os.environ["SLURM_JOB_ID"], os.environ["SLURM_JOB_NODELIST"]
        except KeyError as missing:
            raise ConfigError(
                f"{missing.args[0]}: expected in the environment, found nothing; run this inside a job, from a script "
                "for sbatch (docs/clusters.md has one) or after salloc"
            ) from None
        if "SLURM_GPUS_PER_TASK" in os.environ:
            raise ConfigError(
                "--gpus-per-task: expected GPUs for a node, found some for a task, of which a step would see a part; "
                "use --gpus-per-node"
            )
        if "SLURM_ARRAY_TASK_ID" in os.environ:  # the job's own number may be that of all of the array
            self.job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        self.begun_with = self._names(listed)
        self.here = os.environ.get("SLURMD_NODENAME", "")  # empty outside of a job's script

    def seconds_left(self) -> float | None:
        """Return the time that the job has, as Slurm told it when it began; None: it did not."""
        end = os.environ.get("SLURM_JOB_END_TIME", "")
        return int(end) - time.time() if end.isdecimal() else None

    def nodes(self) -> list[str]:
        """Return the names of the nodes that the job has now. Slurm takes lost ones away, with --no-kill."""
        return self._names(_ask("squeue", "--noheader", f"--jobs={self.job}", "--format=%N"))

    def address_of(self, node: str) -> str:
        """Return the address of a node."""
        words = _ask("scontrol", "show", "node", node, "--oneliner").split()
        return next(word.removeprefix("NodeAddr=") for word in words if word.startswith("NodeAddr="))

    def step(
        self, node: str, name: str, command: Sequence[str], environment: Mapping[str, str], output: int | None = None
    ) -> subprocess.Popen[str]:
        """Start a step with one task on a node. It shares what the job has there with other steps."""
        words = [
            "srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0", "--cpu-bind=none",
            "--export=ALL", f"--job-name={name}",
        ]  # fmt: skip
        given = {key: value for key, value in environment.items() if key not in NOT_FOR_STEPS}
        return subprocess.Popen([*words, *command], env=given, stdin=subprocess.DEVNULL, stdout=output, text=True)

    def guard(self, node: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start the step that queues the job again when this process's node is lost."""
        return self.step(node, "luwu-guard", ["bash", "-c", GUARD, "luwu-guard", self.here, self.job], environment)

    def terminate(self, name: str) -> None:
        """Send SIGTERM to the steps of a name. srun itself would answer to one by SIGKILL for its task."""
        try:
            steps = _ask("squeue", "--steps", "--noheader", f"--jobs={self.job}", "--format=%i %j").splitlines()
        except ServerError as error:
            log.warning("%s", error)
            return
        for step in (line.split()[0] for line in steps if line.split()[1:] == [name]):
            subprocess.run(["scancel", "--signal=TERM", step], stderr=subprocess.DEVNULL, check=False)

    def requeue(self) -> None:
        """Let Slurm start the job again, later.

        Raises:
            ServerError: it refuses, or its controller does not answer for two minutes.
        """
        for tried in range(REQUEUE_TRIES):
            try:
                _ask("scontrol", "requeue", self.job)
                return
            except ServerError as error:
                if not any(words in str(error) for words in AWAY) or tried == REQUEUE_TRIES - 1:
                    raise
                log.warning("%s", error)
                time.sleep(TRY_SECONDS)

    def _names(self, listed: str) -> list[str]:
        return _ask("scontrol", "show", "hostnames", listed.strip()).split() if listed.strip() else []


def _ask(*command: str) -> str:
    """Return what a command of Slurm prints; raises ServerError with what it says where it fails."""
    try:
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ServerError(f"{command[0]}: not found; Slurm's commands must be in PATH on the job's nodes") from None
    if answer.returncode:
        raise ServerError(f"{' '.join(command)}: {answer.stderr.strip() or f'status {answer.returncode}'}")
    return answer.stdout
