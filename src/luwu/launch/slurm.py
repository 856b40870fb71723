"""A server and its workers as steps of a Slurm job, which goes on when a worker or a node of it is lost."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from luwu.control.address import HostPort, parse_url
from luwu.core.errors import ConfigError, ServerError
from luwu.launch.cluster_job import Action, ClusterJob, Finish, Requeue, StartWorker

WORKER_RETURN_SECONDS = 600
"""Seconds that a server started here waits for another worker at a lost one's place, if it is not told otherwise."""

SIGNAL_BEFORE_THE_END = signal.SIGUSR1
"""The signal that a job asks Slurm for before its time is over, as with ``#SBATCH --signal=B:USR1@120``."""

SERVER_STEP = "luwu-server"

GUARD_STEP = "luwu-guard"
GUARD = """
while sleep 30; do
    nodes=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%N) && [[ $nodes ]] || continue
    scontrol show hostnames "$nodes" | grep --quiet --line-regexp "$1" || exec scontrol requeue "$SLURM_JOB_ID"
done
"""
"""Shell script of a step on another node. It queues the job again when the node of the job's script is lost: with
``--no-kill`` Slurm lets such a job stay as it is, with nobody in it, until its time is over."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlurmSettings:
    """Programs of a Slurm job, and where they run.

    Args:
        server: arguments of `luwu server`.
        worker: a worker's program and its arguments.
        workers_per_node, spare_nodes, server_node, restarts: see `ClusterJob`.
    """

    server: Sequence[str]
    worker: Sequence[str]
    workers_per_node: int = 1
    spare_nodes: int = 0
    server_node: str = ""
    restarts: int = 3


class Slurm:
    """The Slurm job that this process is part of.

    Raises:
        ConfigError: it is part of none.
    """

    def __init__(self) -> None:
        try:
            self.job, listed = os.environ["SLURM_JOB_ID"], os.environ["SLURM_JOB_NODELIST"]
        except KeyError as missing:
            raise ConfigError(
                f"{missing.args[0]}: expected in the environment, found nothing; run this inside a job, from a script "
                "for sbatch (docs/clusters.md has one) or after salloc"
            ) from None
        self.begun_with = self._names(listed)
        self.here = os.environ.get("SLURMD_NODENAME", "")  # empty outside of a job's script

    def nodes(self) -> list[str]:
        """Return the names of the nodes that the job has now. Slurm takes lost ones away, with --no-kill."""
        return self._names(_ask("squeue", "--noheader", f"--jobs={self.job}", "--format=%N"))

    def address_of(self, node: str) -> str:
        """Return the address of a node."""
        words = _ask("scontrol", "show", "node", node, "--oneliner").split()
        return next(word.removeprefix("NodeAddr=") for word in words if word.startswith("NodeAddr="))

    def step(self, node: str, name: str, command: Sequence[str], **settings: object) -> subprocess.Popen[str]:
        """Start a step with one task on a node. It shares what the job has there with other steps."""
        words = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0", "--cpu-bind=none"]
        return subprocess.Popen([*words, f"--job-name={name}", *command], text=True, **settings)  # type: ignore[call-overload]

    def terminate(self, name: str) -> None:
        """Send SIGTERM to the steps of a name. srun itself would answer to one by SIGKILL for its task."""
        steps = _ask("squeue", "--steps", "--noheader", f"--jobs={self.job}", "--format=%i %j").splitlines()
        for step in (line.split()[0] for line in steps if line.split()[1:] == [name]):
            subprocess.run(["scancel", "--signal=TERM", step], stderr=subprocess.DEVNULL, check=False)

    def requeue(self) -> None:
        """Let Slurm start the job again, later; raises ServerError where it refuses."""
        _ask("scontrol", "requeue", self.job)

    def _names(self, listed: str) -> list[str]:
        return _ask("scontrol", "show", "hostnames", listed.strip()).split() if listed.strip() else []


def _ask(*command: str) -> str:
    """Return what a command of Slurm prints; raises ServerError with what it says where it fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ServerError(f"{command[0]}: not found; Slurm's commands must be in PATH on the job's nodes") from None
    if answer.returncode:
        raise ServerError(f"{' '.join(command)}: {answer.stderr.strip() or f'status {answer.returncode}'}")
    return answer.stdout


Event = Callable[[ClusterJob, Sequence[str]], list[Action]]
"""Function that tells a `ClusterJob` of an event, given the job's nodes."""


@dataclass
class SlurmRun:
    """Carries out what a `ClusterJob` decides, in the job that this process is part of."""

    settings: SlurmSettings
    slurm: Slurm
    _events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    _workers: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    _guards: list[subprocess.Popen[str]] = field(default_factory=list)
    _environment: dict[str, str] = field(default_factory=dict)

    def run(self) -> int:
        """Run the server and the workers until all workers have finished; return the exit status of the job.

        Raises:
            ConfigError: the settings do not fit the job. ServerError: a command of Slurm failed.
        """
        settings = self.settings
        job = ClusterJob(
            self.slurm.begun_with, settings.workers_per_node, settings.spare_nodes, settings.server_node,
            settings.restarts,
        )  # fmt: skip
        self._environment = os.environ | {
            "WORLD_SIZE": str(job.workers),
            "LOCAL_WORLD_SIZE": str(settings.workers_per_node),
            "LUWU_JOB_KEY": secrets.token_hex(32),
        }
        with self._told_of_the_end():
            server = self._start_server(job)
            self._start_guard(self.slurm.begun_with)
            try:
                end = self._follow(job)
            finally:
                others = [*self._workers.values(), *self._guards]
                for step in others:
                    step.terminate()
                self.slurm.terminate(SERVER_STEP)
                for step in (*others, server):
                    step.wait()
        if isinstance(end, Finish):
            log.log(logging.ERROR if end.status else logging.INFO, "%s", end.why or "all workers have finished")
            return end.status
        log.warning("%s; the job is queued again, and goes on from the last commit", end.why)
        self.slurm.requeue()
        return 0

    def _follow(self, job: ClusterJob) -> Finish | Requeue:
        actions: list[Action] = []
        nodes: Sequence[str] = self.slurm.begun_with
        while True:
            for action in actions:
                if not isinstance(action, StartWorker):
                    return action
                self._start_worker(action)
            event = self._events.get()
            try:
                nodes = self.slurm.nodes()
            except ServerError as error:  # Slurm's controller may be away for a while, and its jobs go on
                log.warning("%s; the nodes count as before", error)
            actions = event(job, nodes)

    def _start_server(self, job: ClusterJob) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "luwu.cli", "server", "--listen", "0.0.0.0:0", "--workers", str(job.workers)]
        if not any(word.startswith("--worker-return-seconds") for word in self.settings.server):
            command += ["--worker-return-seconds", str(WORKER_RETURN_SECONDS)]
        server = self.slurm.step(
            job.server_node, SERVER_STEP, [*command, *self.settings.server], env=self._environment,
            stdout=subprocess.PIPE,
        )  # fmt: skip

        def watch() -> None:
            assert server.stdout is not None
            if line := server.stdout.readline():
                port = parse_url(line.strip()).port
                self._events.put(lambda job, nodes: self._serves(job, port))
            status = server.wait()
            self._events.put(lambda job, nodes: job.server_ended(status, nodes))

        threading.Thread(target=watch, name=SERVER_STEP, daemon=True).start()
        return server

    def _serves(self, job: ClusterJob, port: int) -> list[Action]:
        url = HostPort(self.slurm.address_of(job.server_node), port).url
        log.info("the server on %s serves %d workers at %s", job.server_node, job.workers, url)
        self._environment["LUWU_SERVER"] = url
        return job.begin()

    def _start_worker(self, place: StartWorker) -> None:
        log.info("starts worker %d on %s", place.rank, place.node)
        own = {"RANK": str(place.rank), "LOCAL_RANK": str(place.local_rank)}
        worker = self._workers[place.rank] = self.slurm.step(
            place.node, f"worker-{place.rank}", self.settings.worker, env=self._environment | own
        )

        def watch() -> None:
            status = worker.wait()
            status = 128 - status if status < 0 else status  # srun itself was killed
            self._events.put(lambda job, nodes: job.worker_ended(place.rank, status, nodes))

        threading.Thread(target=watch, name=f"worker-{place.rank}", daemon=True).start()

    def _start_guard(self, nodes: Sequence[str]) -> list[Action]:
        """Start the guard of this node on another one, and again when that one is lost."""
        others = [node for node in nodes if node != self.slurm.here]
        if not self.slurm.here or not others:
            return []
        guard = self.slurm.step(others[0], GUARD_STEP, ["bash", "-c", GUARD, GUARD_STEP, self.slurm.here])
        self._guards.append(guard)

        def watch() -> None:
            guard.wait()
            self._events.put(lambda job, nodes: self._start_guard(nodes))

        threading.Thread(target=watch, name=GUARD_STEP, daemon=True).start()
        return []

    @contextmanager
    def _told_of_the_end(self) -> Iterator[None]:
        """Context manager: Slurm's signal before the end of the job's time is an event."""
        event: Event = lambda job, nodes: job.time_is_over()  # noqa: E731
        before = signal.signal(SIGNAL_BEFORE_THE_END, lambda number, frame: self._events.put(event))
        try:
            yield
        finally:
            signal.signal(SIGNAL_BEFORE_THE_END, before)
