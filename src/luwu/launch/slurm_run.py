"""A server and its workers as steps of a Slurm job, which goes on when a worker or a node of it is lost."""

from __future__ import annotations

import logging
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from luwu.control.address import HostPort, parse_url
from luwu.core.errors import ConfigError, ServerError
from luwu.core.exits import SIGNAL_BASE, SIGNALLED, Exit
from luwu.launch.cluster_job import (
    WORKER_RETURN_SECONDS,
    Action,
    ClusterJob,
    Finish,
    Requeue,
    StartWorker,
    Wait,
)
from luwu.launch.slurm import Slurm

SIGNAL_BEFORE_THE_END = signal.SIGUSR1
"""The signal that a job asks Slurm for before its time is over, as with ``#SBATCH --signal=B:USR1@120``."""

SERVER_STEP = "luwu-server"
ANSWER_SECONDS = 5.0
END_SECONDS = 60.0
"""Seconds that the steps have to end after SIGTERM. Those of a lost node never do; the server may take longer."""

ENOUGH_TO_REQUEUE = 2
"""A job that is queued again gives its server more time while it has this many times `END_SECONDS` left."""

GUARD_SECONDS = 30.0
"""Pause before another guard, where one has ended."""

REFUSED = {
    "--key-file": "workers would not know it; name the file by LUWU_JOB_KEY_FILE, or let the job have a key of its own",
    "--listen": "the launcher chooses the address, and tells it the workers",
    "--min-workers": "the number of workers is that of the job's nodes",
    "--workers": "there are as many as the job's nodes without spare ones, times --workers-per-node",
}
"""Arguments that a server in a job cannot have, and why."""

log = logging.getLogger(__name__)

Event = Callable[[ClusterJob, Sequence[str]], list[Action]]
"""Function that tells a `ClusterJob` of an event, given the job's nodes."""


@dataclass(frozen=True)
class SlurmSettings:
    """Programs of a Slurm job, and where they run.

    Args:
        server: arguments of `luwu server`.
        worker: a worker's program and its arguments.
        workers_per_node, spare_nodes, server_node, restarts: see `ClusterJob`.

    Raises:
        ConfigError: the server would have another job key than the workers.
    """

    server: Sequence[str]
    worker: Sequence[str]
    workers_per_node: int = 1
    spare_nodes: int = 0
    server_node: str = ""
    restarts: int = 3

    def __post_init__(self) -> None:
        for flag, why in REFUSED.items():
            if self._names(flag):
                raise ConfigError(f"--server: expected no {flag}: {why}")

    def server_command(self, workers: int) -> list[str]:
        """Return the server's program and its arguments."""
        command = [sys.executable, "-m", "luwu.cli", "server", "--listen", "0.0.0.0:0", "--workers", str(workers)]
        if not self._names("--worker-return-seconds") and not self._names("--config"):
            command += ["--worker-return-seconds", f"{WORKER_RETURN_SECONDS:g}"]
        return [*command, *self.server]

    def _names(self, flag: str) -> bool:
        return any(word == flag or word.startswith(f"{flag}=") for word in self.server)


class SlurmRun:
    """Carries out what a `ClusterJob` decides, in the job that this process is part of."""

    def __init__(self, settings: SlurmSettings, slurm: Slurm) -> None:
        self._settings = settings
        self._slurm = slurm
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._guards: list[subprocess.Popen[str]] = []
        self._environment = dict(os.environ)
        self._server: HostPort | None = None  # once it serves
        self._ending = False

    def run(self) -> int:
        """Run the server and the workers until all workers have finished; return the exit status of the job.

        Raises:
            ConfigError: the settings do not fit the job. ServerError: a command of Slurm failed.
        """
        wanted = self._settings
        job = ClusterJob(
            self._slurm.begun_with, wanted.workers_per_node, wanted.spare_nodes, wanted.server_node, wanted.restarts
        )
        self._environment |= {"WORLD_SIZE": str(job.workers), "LOCAL_WORLD_SIZE": str(wanted.workers_per_node)}
        if "LUWU_JOB_KEY_FILE" not in os.environ:
            self._environment.setdefault("LUWU_JOB_KEY", secrets.token_hex(32))
        with self._told_of_signals():
            server = self._start_server(job)
            self._start_guard(self._slurm.begun_with)
            end: Finish | Requeue | None = None
            try:
                end = self._follow(job)
                if isinstance(end, Requeue):
                    log.warning("%s; the job is queued again, and goes on from the last commit", end.why)
                else:
                    why = end.why or "all workers have finished"
                    log.log(logging.ERROR if end.status else logging.INFO, "%s; ends the other steps", why)
            finally:
                self._end_steps(server, job.server_node, requeues=isinstance(end, Requeue))
        if isinstance(end, Finish):
            return end.status
        self._slurm.requeue()
        return Exit.DONE

    def _follow(self, job: ClusterJob) -> Finish | Requeue:
        nodes: Sequence[str] = self._slurm.begun_with
        while True:
            event = self._events.get()
            try:
                nodes = self._slurm.nodes()
            except ServerError as error:  # Slurm's controller may be away for a while, and its jobs go on
                log.warning("%s; the nodes count as before", error)
            for action in event(job, nodes):
                if isinstance(action, Finish | Requeue):
                    return action
                self._carry_out(action)

    def _carry_out(self, action: StartWorker | Wait) -> None:
        if isinstance(action, Wait):
            log.warning("the server does not answer, or was told to stop; waiting for Slurm to say more")
            self._later(action.seconds, lambda job, nodes: job.doubt_is_over(nodes))
        elif action.pause_seconds:
            log.warning("starts worker %d again on %s: %s", action.rank, action.node, action.why)
            self._later(action.pause_seconds, lambda job, nodes: job.pause_is_over(action.rank, nodes))
        else:
            self._start_worker(action)

    def _later(self, seconds: float, event: Event) -> None:
        timer = threading.Timer(seconds, self._events.put, (event,))
        timer.daemon = True
        timer.start()

    def _start_server(self, job: ClusterJob) -> subprocess.Popen[str]:
        command = self._settings.server_command(job.workers)
        server = self._slurm.step(job.server_node, SERVER_STEP, command, self._environment, subprocess.PIPE)

        def watch() -> None:
            assert server.stdout is not None
            told = (re.search(r"luwu://\S+", line) for line in server.stdout)  # a site may print lines of its own
            if found := next(filter(None, told), None):
                port = parse_url(found[0]).port
                self._events.put(lambda job, nodes: self._serves(job, port))
            status = status_of(server)
            self._events.put(lambda job, nodes: job.server_ended(status, nodes))

        threading.Thread(target=watch, name=SERVER_STEP, daemon=True).start()
        return server

    def _serves(self, job: ClusterJob, port: int) -> list[Action]:
        self._server = HostPort(self._slurm.address_of(job.server_node), port)
        log.info("the server on %s serves %d workers at %s", job.server_node, job.workers, self._server.url)
        self._environment["LUWU_SERVER"] = self._server.url
        return job.begin()

    def _server_answers(self) -> bool:
        assert self._server is not None
        try:
            with socket.create_connection((self._server.host, self._server.port), ANSWER_SECONDS):
                return True
        except OSError:
            return False

    def _start_worker(self, place: StartWorker) -> None:
        log.info("starts worker %d on %s%s", place.rank, place.node, f": {place.why}" if place.why else "")
        own = {"RANK": str(place.rank), "LOCAL_RANK": str(place.local_rank)}
        name, command = f"worker-{place.rank}", self._settings.worker
        worker = self._workers[place.rank] = self._slurm.step(place.node, name, command, self._environment | own)

        def watch() -> None:
            status = status_of(worker)
            answers = status == 0 or status in SIGNALLED or self._server_answers()
            self._events.put(lambda job, nodes: job.worker_ended(place.rank, status, nodes, server_answers=answers))

        threading.Thread(target=watch, name=name, daemon=True).start()

    def _start_guard(self, nodes: Sequence[str]) -> list[Action]:
        """Start the guard of this node on another one, and a while after its end one on the next."""
        others = [node for node in nodes if node != self._slurm.here]
        if not self._slurm.here or not others:
            return []
        guard = self._slurm.guard(others[len(self._guards) % len(others)], self._environment)
        self._guards.append(guard)

        def watch() -> None:
            guard.wait()
            self._later(GUARD_SECONDS, lambda job, nodes: [] if job.over else self._start_guard(nodes))

        threading.Thread(target=watch, name="luwu-guard", daemon=True).start()
        return []

    def _end_steps(self, server: subprocess.Popen[str], server_node: str, *, requeues: bool) -> None:
        """End all steps; a job that is to be queued again must be before its time is over."""

        def may_go_on() -> bool:
            left = self._slurm.seconds_left()
            if requeues and (left is None or left < ENOUGH_TO_REQUEUE * END_SECONDS):
                return False
            return server_node in self._slurm.nodes()

        self._ending = True
        others = [*self._workers.values(), *self._guards]
        for step in others:
            step.terminate()
        self._slurm.terminate(SERVER_STEP)
        for step in others:
            end_step(step, END_SECONDS)
        end_step(server, END_SECONDS, may_go_on)

    @contextmanager
    def _told_of_signals(self) -> Iterator[None]:
        """Context manager: signals to this process are events."""
        events: dict[signal.Signals, Event] = {
            SIGNAL_BEFORE_THE_END: lambda job, nodes: job.time_is_over(),
            signal.SIGTERM: lambda job, nodes: job.stopped(),
            signal.SIGINT: lambda job, nodes: job.stopped(),
        }

        def told(number: int, frame: FrameType | None) -> None:
            if not self._ending:
                self._events.put(events[signal.Signals(number)])
            elif number != SIGNAL_BEFORE_THE_END:  # once more: the server is not to wait for room on a full disk
                threading.Thread(target=self._slurm.terminate, args=(SERVER_STEP,), daemon=True).start()

        before = {number: signal.signal(number, told) for number in events}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def status_of(step: subprocess.Popen[str]) -> int:
    """Wait for a step; return its exit status as a shell gives it."""
    status = step.wait()
    return SIGNAL_BASE - status if status < 0 else status


def end_step(step: subprocess.Popen[str], seconds: float, may_go_on: Callable[[], bool] = lambda: False) -> None:
    """Wait for the end of a step that was told to stop.

    Args:
        step: the step's process.
        seconds: time after which the step is killed, unless it may go on.
        may_go_on: tells that the step is to have as much time again: a server puts on the disk what its memory has.
    """
    while True:
        with suppress(subprocess.TimeoutExpired):
            step.wait(seconds)
            return
        try:
            goes_on = may_go_on()
        except ServerError:  # Slurm's controller may be away for a while
            goes_on = True
        if not goes_on:
            step.kill()
            return
        log.info("the server still puts its last steps on the disk")
