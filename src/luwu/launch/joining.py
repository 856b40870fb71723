"""Workers of a run that another machine's launcher has (`luwu train --join`): started, watched, and told of."""

from __future__ import annotations

import json
import math
import os
import queue
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from pathlib import Path
from typing import Any

from luwu.control import control_pb2 as pb
from luwu.control.client import ControlClient
from luwu.control.credentials import launcher_request
from luwu.control.waiting import until
from luwu.core.errors import ConfigError, LuwuError, ServerError, WorkerLostError, error_named
from luwu.core.room import Room
from luwu.core.words import counted, printable
from luwu.launch.clock import OtherClock
from luwu.launch.elsewhere import ServerElsewhere
from luwu.launch.fetching import fetch_files
from luwu.launch.folder import RunFolder
from luwu.launch.interrupts import Interrupts
from luwu.launch.job import Job, ServerAccess
from luwu.launch.machines import MODEL_CONFIG, workers_text
from luwu.launch.processes import WorkerProcesses, ended_from_outside
from luwu.launch.reports import error_report
from luwu.launch.restarts import Restarts
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
    with Interrupts() as interrupts:
        while True:
            run = JoinedRun(access, workers, own, folder, display)
            try:
                return run.run(interrupts)
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
            access = access.model_copy(update={"connect_seconds": left})


def cause_of(error: LuwuError) -> str:
    """Return what an error says has happened, without what its reader is to do: this program does it."""
    return str(error).split(";")[0]


class JoinedRun:
    """Runs workers for a launcher once: from the offer to the end of the run, or the loss of the launcher.

    The arguments are those of `join_run`.

    Attributes:
        job: the run; None: no place was given.
        step: the last step that a worker here has reported.
        committed: a step was committed since the workers joined.
        over: the run has ended for good, or a worker here has.
        met: the launcher has answered, and taken this one in.
    """

    def __init__(
        self, access: ServerAccess, workers: int, own: Mapping[str, Any], folder: Path | None, display: Display
    ) -> None:
        self._access, self._wanted, self._own, self._path = access, workers, own, folder
        self._display = display
        self._stages = Stages(display)
        self._events: queue.SimpleQueue[pb.Event | LuwuError] = queue.SimpleQueue()
        self._clock = OtherClock()
        self._client = ControlClient(access.url, access.find(), access.timeouts(), self._events.put, self._events.put)
        self.job: Job | None = None
        self.step = 0
        self.over, self.stopped = False, True

    @property
    def met(self) -> bool:
        """True once the launcher has answered, and taken this one in."""
        return self._client.met

    def run(self, interrupts: Interrupts) -> bool:
        """Run the workers; return True where the run, or this machine, was stopped. Raises as `join_run`."""
        if self._path is not None:  # before others count on this machine
            with hold(self._path):
                return self._run(interrupts)
        return self._run(interrupts)

    def _run(self, interrupts: Interrupts) -> bool:
        try:
            if not self._join(interrupts):
                return True
            self._stages.show(f"waiting for a place in the run at {self._access.url}")
            places = self._wait_for_places(interrupts)
            if places is None:
                return self.stopped
            self.job = job = Job.model_validate_json(places.job)
            if self._path is not None:
                return self._work(job, RunFolder(self._path), places, interrupts)
            path = default_folder(job)
            with hold(path):
                return self._work(job, RunFolder(path), places, interrupts)
        finally:
            self._client.close(leave=True)

    def _join(self, interrupts: Interrupts) -> bool:
        """Offer the workers; return False if interrupted."""
        host, workers = socket.gethostname(), self._wanted

        def ask(stub: Any, nonce: bytes, proof: bytes, seconds: float) -> pb.JoinReply:
            request = pb.JoinLauncherRequest(nonce=nonce, proof=proof, host=host, workers=workers)
            return stub.JoinLauncher(request, timeout=seconds)

        with ThreadPoolExecutor(1, thread_name_prefix="luwu-join") as pool:
            joining = pool.submit(self._client.join, launcher_request(host, workers), ask)
            while True:
                if interrupts.count:
                    self._client.give_up()
                try:
                    joining.result(timeout=LOOK_SECONDS)
                except NotYet:
                    if joining.done():
                        raise
                    continue
                except LuwuError:
                    if interrupts.count:
                        return False
                    raise
                return not interrupts.count

    def _wait_for_places(self, interrupts: Interrupts) -> pb.Places | None:
        """Return the places; None: the run has ended before, or this machine was interrupted."""
        while not interrupts.count:
            event = self._next_event()
            if event is not None and event.HasField("places"):
                return event.places
            if event is not None and event.HasField("ended"):
                self.stopped = self._end(event.ended)
                return None
        return None

    def _next_event(self) -> pb.Event | None:
        """Return the next event, or None after a moment; raises the error that the session has ended with."""
        try:
            found = self._events.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            return None
        if isinstance(found, LuwuError):
            raise found
        return found

    def _work(self, job: Job, folder: RunFolder, places: pb.Places, interrupts: Interrupts) -> bool:
        ranks = list(places.ranks)
        room = Room(job.settings.run.disk_full_wait_seconds, self._stages.show_room, lambda: interrupts.count > 0)
        unused = self._wanted - len(ranks)
        more = f"; no place is left for {counted(unused, 'more worker')} of it" if unused else ""
        self._display.say(
            f"{workers_text(ranks)} of {job.settings.run.workers} on this machine, folder {folder.path}{more}"
        )
        sizes = {file.name: file.size for file in places.files}
        fetch_files(sizes, folder.path, self._read, self._show_fetching, room)
        own = job.model_copy(
            update={
                "settings": self._settings_here(job.settings, folder, with_model=MODEL_CONFIG in sizes),
                "folder": str(folder.path),
                "launcher_pid": os.getpid(),
                "joined": True,
                "server": self._access.model_copy(update={"connect_seconds": None}),
            }
        )
        own.write(folder.job_path, room)
        self._stages.show("starting workers")
        return self._supervise(own, folder, ranks, interrupts, room)

    def _settings_here(self, settings: Settings, folder: RunFolder, *, with_model: bool) -> Settings:
        """Return the run's settings with those of this machine. Raises ConfigError."""
        own: dict[str, Mapping[str, Any]] = {"run": {k: v for k, v in self._own.items() if k != "workers_here"}}
        if with_model:
            own["model"] = {"path": str(folder.path / MODEL_CONFIG)}
        return build_settings(settings.model_dump(), own)

    def _read(self, name: str, offset: int) -> bytes:
        return bytes(self._client.call("Read", pb.ReadRequest(name=name, offset=offset)).content)

    def _show_fetching(self, done: float, total: float) -> None:
        self._stages.show("fetching the text", f"{100 * done / max(1, total):.0f} %")

    def _supervise(self, job: Job, folder: RunFolder, ranks: Sequence[int], interrupts: Interrupts, room: Room) -> bool:
        restarts = Restarts(job.settings.run.restarts)

        def forward(rank: int, report: Report) -> None:
            self._forward(rank, report, restarts, shown=rank == ranks[0])

        workers = WorkerProcesses(folder, job.settings.run.workers, forward, room, ranks)
        told_left = False
        try:
            while True:
                event = self._next_event()
                if event is not None and event.HasField("ended"):
                    return self._end(event.ended)
                if event is not None and event.HasField("stop"):
                    workers.ask_to_stop()
                if event is not None and event.HasField("notice") and event.notice.HasField("fenced"):
                    restarts.note_fenced(event.notice.fenced)
                for text in restarts.look(workers, may_start=True):
                    self._display.say(text)
                if interrupts.count:
                    self._display.say("stopped; the run waits for another machine in the place of this one")
                    return True
                if restarts.gives_up(workers, may_start=True):
                    return self._fail(workers)
                if not workers.running() and not told_left:
                    told_left = True
                    for rank in ranks:
                        self._tell(rank, {"kind": "left"})
        finally:
            workers.kill()

    def _fail(self, workers: WorkerProcesses) -> bool:
        """Raise the workers' error, or return how the run has ended where they are not its cause."""
        ended, error = workers.failed(), workers.error()
        if not ended_from_outside(ended) or any(each.status < 0 for each in ended):
            self.over = True
            self._tell(ended[0].rank, error_report(error))
            raise error
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            event = self._next_event()
            if event is not None and event.HasField("ended"):
                return self._end(event.ended)
        raise error

    def _end(self, ended: pb.RunEnded) -> bool:
        """Return True where the run was stopped; raises what it has failed with."""
        self.over = True
        if ended.error:
            raise error_named(ended.error, ServerError)(printable(ended.message))
        self._stages.show("stopped" if ended.stopped else "done")
        return ended.stopped

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


def hold(path: Path) -> ServerElsewhere:
    """Lock a folder for a run that another machine has; raises ConfigError where it is the folder of a run here."""
    if RunFolder(path).config_path.exists():
        raise ConfigError(f"--run: expected a folder that has no run of its own, found {path}, which has; name another")
    return ServerElsewhere(path)


def default_folder(job: Job) -> Path:
    """Return the folder on this machine of a run that another machine has."""
    run_id = Claim.from_json(job.claim).run.id if job.claim else "run"
    return Path("runs", f"joined-{run_id[:12]}")
