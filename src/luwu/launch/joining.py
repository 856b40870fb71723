"""Workers of a run that another machine's launcher has (`luwu train --join`): started, watched, and told of."""

from __future__ import annotations

import json
import math
import os
import queue
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from luwu.control import control_pb2 as pb
from luwu.control.client import ControlClient
from luwu.control.credentials import launcher_request
from luwu.control.waiting import until
from luwu.core.errors import ConfigError, LuwuError, ServerError, WorkerLostError, error_named
from luwu.core.room import Room, WaitStoppedError
from luwu.core.words import counted, printable
from luwu.launch.clock import OtherClock
from luwu.launch.elsewhere import ServerElsewhere
from luwu.launch.events import log_event
from luwu.launch.fetching import fetch_files
from luwu.launch.folder import RunFolder
from luwu.launch.interrupts import Interrupts
from luwu.launch.job import Job, ServerAccess, mark_ended, problem_in
from luwu.launch.machine_words import workers_text
from luwu.launch.machines import MODEL_CONFIG
from luwu.launch.own_folder import require_own
from luwu.launch.processes import WorkerProcesses, ended_from_outside
from luwu.launch.reports import error_report
from luwu.launch.restarts import Restarts
from luwu.launch.returning import cause_of
from luwu.launch.run_reports import Report
from luwu.launch.settings import RunSettings, Settings, build_settings
from luwu.launch.stages import Stages
from luwu.observe.display import Display
from luwu.store.run_record import Claim

LOOK_SECONDS = 0.1
"""Seconds between two looks at workers, Ctrl-C and events."""

RETRY_SECONDS = 0.5
"""Pause before the launcher of the run is tried again."""

GRACE_SECONDS = 15.0
"""Seconds that the run's launcher may take to say how the run has ended, after workers here have."""

OWN_SETTINGS = ("device", "device_memory", "micro_batch", "offload", "workers_here")
"""Settings of `run` that each machine has for itself."""


def join_run(access: ServerAccess, workers: int, own: Mapping[str, Any], folder: Path | None, display: Display) -> bool:
    """Run workers for the run at an address until it ends; return True where it, or this machine, was stopped.

    Args:
        access: the run's launcher, which has its server.
        workers: the most workers to run here.
        own: settings of `run` for this machine.
        folder: run folder on this machine; None: one in `runs` that is named after the run.
        display: shows the user what happens.

    Raises:
        LuwuError: the run's error, or a worker's. Where the launcher was lost, and did not come back within the run's
            ``server_return_seconds``, a ServerError.
    """
    seconds, deadline, step = RunSettings().server_return_seconds, None, 0
    restarts: Restarts | None = None
    with Interrupts() as interrupts:
        while True:
            run = JoinedRun(access, workers, own, folder, display, restarts)
            try:
                end = run.run(interrupts)
                if end is not End.AGAIN:
                    return end is End.STOPPED
                continue
            except (ServerError, WorkerLostError) as error:
                step = max(step, run.step)
                seconds = run.job.settings.run.server_return_seconds if run.job is not None else seconds
                deadline = time.monotonic() + seconds if run.met else deadline
                left = 0 if deadline is None else math.ceil(deadline - time.monotonic() - RETRY_SECONDS)
                if run.over or left <= 0:
                    raise
                if run.met:
                    known = f"; step {step} is the last one known here" if step else ""
                    display.say(f"{cause_of(error)}{known}; joining again if it answers {until(left)}")
                time.sleep(RETRY_SECONDS)
            finally:
                restarts = run.restarts
            access = access.model_copy(update={"connect_seconds": left})


class End(Enum):
    """The end of a joined run."""

    DONE = auto()
    STOPPED = auto()  # the run, or this machine
    AGAIN = auto()  # this machine has given its places up, and may offer again


class _EndedError(Exception):
    """The run has ended while this machine was busy otherwise; ``end`` says how."""

    def __init__(self, end: End) -> None:
        super().__init__(end.name)
        self.end = end


class JoinedRun:
    """Runs workers for a launcher once: from joining it to the end of the run, or the loss of the launcher.

    The arguments are those of `join_run`, and the restarts that are left; None: those of the run's settings.

    Attributes:
        job: the run; None: the launcher has not told it yet.
        step: the last step that a worker here has reported.
        over: the run has ended for good, or a worker here has.
        restarts: the restarts that are left.
    """

    def __init__(
        self,
        access: ServerAccess,
        workers: int,
        own: Mapping[str, Any],
        folder: Path | None,
        display: Display,
        restarts: Restarts | None = None,
    ) -> None:
        self._access, self._wanted, self._own, self._path = access, workers, own, folder
        self._display = display
        self._stages = Stages(display)
        self._events: queue.SimpleQueue[pb.Event | LuwuError] = queue.SimpleQueue()
        self._clock = OtherClock()
        self._client = ControlClient(access.url, access.find(), access.timeouts(), self._events.put, self._events.put)
        self.restarts = restarts
        self.job: Job | None = None
        self.step = 0
        self.over = False

    @property
    def met(self) -> bool:
        """True once the launcher has answered, and taken this one in."""
        return self._client.met

    def run(self, interrupts: Interrupts) -> End:
        """Run the workers until the end. Raises as `join_run`."""
        self._interrupts = interrupts
        try:
            self._join()
            self._stages.show(f"joined the run at {self._access.url}")
            told = self._wait_for("job").job
            self.job = job = parse_job(told.job)
            self.restarts = self.restarts or Restarts(job.settings.run.restarts)
            self.restarts.may_begin = False
            folder = RunFolder(self._path or default_folder(job))
            with hold(folder):
                try:
                    return self._work(job, told.files, folder)
                finally:
                    mark_ended(folder.job_path)
        except _EndedError as ended:
            return ended.end
        finally:
            self._client.close(leave=True)

    def _join(self) -> None:
        host = socket.gethostname()

        def ask(stub: Any, nonce: bytes, proof: bytes, seconds: float) -> pb.JoinReply:
            return stub.JoinLauncher(pb.JoinLauncherRequest(nonce=nonce, proof=proof, host=host), timeout=seconds)

        with ThreadPoolExecutor(1, thread_name_prefix="luwu-join") as pool:
            joining = pool.submit(self._client.join, launcher_request(host), ask)
            while not joining.done():
                if self._interrupts.count:
                    self._client.give_up()
                wait([joining], LOOK_SECONDS)
            self._look_at_interrupts()
            joining.result()

    def _look_at_interrupts(self) -> None:
        if self._interrupts.count:
            raise _EndedError(End.STOPPED)

    def _wait_for(self, kind: str) -> pb.Event:
        """Return the next event of a kind. Raises _EndedError, or the error that the session has ended with."""
        while True:
            self._look_at_interrupts()
            event = self._next_event(LOOK_SECONDS)
            if event is not None and event.WhichOneof("kind") == kind:
                return event

    def _next_event(self, seconds: float) -> pb.Event | None:
        """Return the next event, or None after this time.

        Raises _EndedError, the run's error, or the error that the session has ended with.
        """
        try:
            found = self._events.get(timeout=seconds) if seconds else self._events.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, LuwuError):
            raise found
        if found.HasField("ended"):
            self.over = True
            if found.ended.error:
                raise error_named(found.ended.error, ServerError)(printable(found.ended.message))
            self._stages.show("stopped" if found.ended.stopped else "done")
            raise _EndedError(End.STOPPED if found.ended.stopped else End.DONE)
        return found

    def _work(self, job: Job, files: Sequence[pb.RunFile], folder: RunFolder) -> End:
        """Fetch the files, offer the workers, and run those that have a place."""
        room = Room(job.settings.run.disk_full_wait_seconds, self._stages.show_room, lambda: self._interrupts.count > 0)
        sizes = {file.name: file.size for file in files}
        try:
            fetch_files(sizes, folder.path, self._read, self._show_fetching, room)
        except WaitStoppedError:
            return End.STOPPED
        own = self._job_here(job, folder, with_model=MODEL_CONFIG in sizes)
        own.write(folder.job_path, room)
        self._stages.show("waiting for a place in the run")
        self._client.call("Offer", pb.OfferRequest(workers=self._wanted))
        ranks = list(self._wait_for("places").places.ranks)
        unused = self._wanted - len(ranks)
        more = f"; no place is left for {counted(unused, 'more worker')} of it" if unused else ""
        self._display.say(
            f"{workers_text(ranks)} of {job.settings.run.workers} on this machine, folder {folder.path}{more}"
        )
        self._stages.show("starting workers")
        return self._supervise(own, folder, ranks, room)

    def _job_here(self, job: Job, folder: RunFolder, *, with_model: bool) -> Job:
        """Return the job with this machine's folder, settings and way to the server. Raises ConfigError."""
        return job.model_copy(
            update={
                "settings": self._settings_here(job.settings, folder, with_model=with_model),
                "folder": str(folder.path),
                "launcher_pid": os.getpid(),
                "joined": True,
                "server": self._access.model_copy(update={"connect_seconds": None}),
            }
        )

    def _settings_here(self, settings: Settings, folder: RunFolder, *, with_model: bool) -> Settings:
        """Return the run's settings with those of this machine. Raises ConfigError."""
        own: dict[str, Mapping[str, Any]] = {
            "run": {name: value for name, value in self._own.items() if name != "workers_here"}
        }
        if with_model:
            own["model"] = {"path": str(folder.path / MODEL_CONFIG)}
        return build_settings(settings.model_dump(), own)

    def _read(self, name: str, offset: int) -> bytes:
        """Read a piece of a file; the run's end, and Ctrl-C, are seen between two."""
        self._look_at_interrupts()
        self._next_event(0)
        try:
            return bytes(self._client.call("Read", pb.ReadRequest(name=name, offset=offset)).content)
        except ServerError:
            while self._next_event(LOOK_SECONDS) is not None:  # the reason may be there
                pass
            raise

    def _show_fetching(self, done: float, total: float) -> None:
        self._stages.show("fetching the text", f"{100 * done / max(1, total):.0f} %")

    def _supervise(self, job: Job, folder: RunFolder, ranks: Sequence[int], room: Room) -> End:
        assert self.restarts is not None
        restarts = self.restarts

        def forward(rank: int, report: Report) -> None:
            self._forward(rank, report, restarts, shown=rank == ranks[0])

        workers = WorkerProcesses(folder, job.settings.run.workers, forward, room, ranks)
        try:
            while True:
                event = self._next_event(LOOK_SECONDS)
                if event is not None and event.HasField("stop"):
                    workers.ask_to_stop()
                if event is not None and event.HasField("notice") and event.notice.HasField("fenced"):
                    restarts.note_fenced(event.notice.fenced)
                for text in restarts.look(workers, may_start=True):
                    self._display.say(text)
                    log_event(folder, text)
                if self._interrupts.count:
                    self._display.say("stopped; the run waits for another machine in the place of this one")
                    return End.STOPPED
                if restarts.gives_up(workers, may_start=True):
                    return self._fail(workers, restarts)
        finally:
            workers.kill()

    def _fail(self, workers: WorkerProcesses, restarts: Restarts) -> End:
        """Raise the workers' error; return where they were killed while they started, and may start once more."""
        ended, error = workers.failed(), restarts.error(workers)
        killed = [each for each in ended if each.status < 0]
        if killed and ended_from_outside(ended) and not restarts.may_begin and restarts.take(len(killed)):
            words = f"worker {killed[0].rank} {killed[0].in_words()} while it started"
            self._display.say(f"{words}; joining again (restart {restarts.in_words()})")
            return End.AGAIN
        if killed or not ended_from_outside(ended):
            self.over = True
            self._tell(ended[0].rank, error_report(error))
            raise error
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            self._next_event(LOOK_SECONDS)
        raise error

    def _forward(self, rank: int, report: Report, restarts: Restarts, *, shown: bool) -> None:
        """Pass a worker's report on to the run's launcher; called in a thread of that worker's."""
        words = dict(report)
        if words["kind"] == "start":
            restarts.note_start(rank)
            restarts.may_begin = words.get("worker_return_seconds", 0.0) > 0
            if shown:
                self._stages.show("training")
        elif words["kind"] == "step":
            words |= {name: self._clock.time_there(words[name]) for name in ("began", "ended")}
            self.step = words["step"]
            if shown:
                self._stages.show("training", f"step {self.step}")
        elif words["kind"] == "say" and shown:
            self._display.say(words["text"])
        self._tell(rank, words)

    def _tell(self, rank: int, report: Report) -> None:
        """Tell the run's launcher something of a worker; where it is gone the session's end says so."""
        asked = time.monotonic()
        with suppress(LuwuError):
            request = pb.TellRequest(rank=rank, report=json.dumps(report))
            reply = self._client.call("Tell", request, patient=True)
            self._clock.note(asked, reply.clock, time.monotonic())


def hold(folder: RunFolder) -> ServerElsewhere:
    """Lock a folder for a run that another machine has; raises ConfigError for one of something else."""
    if folder.config_path.exists():
        raise ConfigError(
            f"--run: expected a folder that has no run of its own, found {folder.path}, which has; name another"
        )
    require_own(folder)
    return ServerElsewhere(folder.path)


def parse_job(text: str) -> Job:
    """Read the job that the run's launcher has told; raises ConfigError where this version cannot."""
    try:
        return Job.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(
            f"job: expected one that this version of luwu reads, found {problem_in(error, 'all of it')}; install the "
            "version of the machine that has the run"
        ) from None


def default_folder(job: Job) -> Path:
    """Return the folder on this machine of a run that another machine has."""
    run_id = Claim.from_json(job.claim).run.id if job.claim else "run"
    return Path("runs", f"joined-{run_id[:12]}")
