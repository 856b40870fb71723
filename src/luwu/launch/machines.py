"""Launchers on other machines that run workers of this launcher's run: their places, their files and their reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from luwu.control import control_pb2 as pb
from luwu.core.errors import ConfigError, LuwuError, WorkerLostError
from luwu.core.quantities import shown
from luwu.core.words import printable
from luwu.data.corpus import DATA_NAME, SIDECAR_NAME
from luwu.data.tokenizer import TOKENIZER_FILE
from luwu.launch.folder import RunFolder, config_file
from luwu.launch.job import Job
from luwu.launch.last_attempts import LastAttempts, is_record
from luwu.launch.machine_words import workers_text
from luwu.launch.places import Grant, Places
from luwu.launch.reports import reported_error
from luwu.launch.run_reports import Report
from luwu.launch.settings import Settings
from luwu.launch.words import checked_report, parse_report
from luwu.server.launchers import Machine
from luwu.server.participants import LauncherMember

READ_BYTES = 1 << 20
"""Most bytes of an answer to `read`."""

MODEL_CONFIG = "model/config.json"
"""Name, for a launcher, of the configuration of a model that is not LuWu's own."""

FILE_NAMES = (DATA_NAME, SIDECAR_NAME, TOKENIZER_FILE, MODEL_CONFIG)
"""Names of all files that launchers may be told of."""


def files_of(folder: RunFolder, settings: Settings) -> dict[str, Path]:
    """Return the files that workers of a run read, by the names that launchers know them by."""
    found = {name: path for name in FILE_NAMES if name != MODEL_CONFIG and (path := folder.path / name).exists()}
    if settings.model.path is not None:
        found[MODEL_CONFIG] = config_file(Path(settings.model.path))
    return found


class Machines:
    """The launchers on other machines. Functions may be called from any thread; see `luwu.server.launchers.Launchers`.

    Args:
        ranks: the workers that they run.
        folder: the run's folder.
        on_report: called with (rank, report) for what those report, in a thread of the server; it may wait.
        say: called with a sentence for the user.

    Attributes:
        losses: launchers that have gone with workers which had not finished.
        failure: the error of a worker, and where it ran; None: none has failed.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        folder: RunFolder,
        on_report: Callable[[int, Report], None],
        say: Callable[[str], None],
    ) -> None:
        self._places = Places(ranks)
        self._folder = folder
        self._on_report = on_report
        self._say = say
        self._lock = threading.Lock()
        self._job: pb.RunJob | None = None
        self._files: dict[str, Path] = {}
        self._here: list[LauncherMember] = []
        self._notes: dict[int, LastAttempts] = {}
        self.losses = 0
        self.failure: LuwuError | None = None

    @property
    def missing(self) -> int:
        """Workers that nobody offers to run, before the run has begun."""
        with self._lock:
            return self._places.missing

    @property
    def begun(self) -> bool:
        """True once all workers were given away."""
        with self._lock:
            return self._places.begun

    @property
    def vacant(self) -> bool:
        """True while a worker that has not done its work has no machine, after the run has begun."""
        with self._lock:
            return self._places.begun and self._places.vacant

    @property
    def unfinished(self) -> bool:
        """True while one of the workers has not done its work."""
        with self._lock:
            return self._places.unfinished

    def publish(self, job: Job, files: dict[str, Path]) -> None:
        """Tell launchers the job and its files from now on, without which they offer nothing."""
        with self._lock:
            self._files = files
            sizes = [pb.RunFile(name=name, size=path.stat().st_size) for name, path in files.items()]
            words = job.model_dump_json(exclude={"settings": {"run": {"on_alert"}}})  # a URL may have a secret
            self._job = pb.RunJob(job=words, files=sizes)
            for launcher in self._here:
                launcher.tell(pb.Event(job=self._job))

    def ask_to_stop(self) -> None:
        """Have rank 0, if it runs elsewhere, stop the run at the end of the step."""
        self._tell(0, pb.Event(stop=pb.Stop()))

    def runs(self, rank: int) -> bool:
        """Return True while a launcher has this worker."""
        with self._lock:
            return self._places.launcher_of(rank) is not None

    def kill_one(self, rank: int) -> None:
        """Have a worker whose session the server has ended killed, and another started in its place."""
        self._tell(rank, pb.Event(notice=pb.Notice(fenced=rank)))

    def end(self, error: LuwuError | None, *, stopped: bool) -> None:
        """Tell all launchers that the run has ended."""
        words = pb.RunEnded(stopped=stopped)
        if error is not None:
            words.error, words.message = type(error).__name__, str(error)
        with self._lock:
            for launcher in self._here:
                launcher.tell(pb.Event(ended=words))

    def join(self, launcher: LauncherMember) -> None:
        """Take a launcher in, and tell it the job once there is one."""
        with self._lock:
            self._here.append(launcher)
            if self._job is not None:
                launcher.tell(pb.Event(job=self._job))

    def offer(self, launcher: LauncherMember, workers: int) -> None:
        """Take a launcher's offer; it gets places once there are enough, or when others go."""
        with self._lock:
            if launcher not in self._here:  # it has gone meanwhile
                return
            grants = self._places.offer(launcher, workers)
            said = self._give(grants)
            if self._places.begun and not grants:
                said = [f"{launcher.host} ({launcher.peer}) waits to take the place of a machine that is lost"]
        self._say_all(said)

    def go(self, launcher: LauncherMember) -> None:
        """Note that a launcher has gone; others that wait get its places."""
        with self._lock:
            if launcher in self._here:
                self._here.remove(launcher)
            left, grants = self._places.go(launcher)
            said = self._give(grants)
            self.losses += bool(left)
        if left:
            self._say(f"{launcher.host} has gone, where {workers_text(left)} ran")
            self._on_report(left[0], {"kind": "stage", "text": "waiting for another machine", "detail": ""})
        self._say_all(said)

    def machines(self) -> list[Machine]:
        """Return the machines of the launchers that have joined, in their order."""
        with self._lock:
            return [
                Machine(each.host, each.peer, self._places.held_by(each), self._places.offered_by(each))
                for each in self._here
            ]

    def read(self, name: str, offset: int) -> bytes:
        """Return the next bytes of a file that launchers were told of; raises ConfigError for another."""
        path = self._files.get(name)
        if path is None:
            raise ConfigError(f"file: expected one of {', '.join(self._files) or 'none'}, found {name!r}")
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(READ_BYTES)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(f"{path}: cannot be read at {offset}: {error}; start the run again") from None

    def note(self, rank: int, record: object) -> None:
        """Write down the part of a worker in an attempt, before its vote on it is taken.

        Raises:
            ConfigError: it is no such part. LuwuError: the file cannot be written to.
        """
        if not is_record(record):
            raise ConfigError(f"report of worker {rank}: expected the record of an attempt, found {shown(record)}")
        path = self._folder.attempts_path(rank)
        try:
            if rank not in self._notes:
                self._notes[rank] = LastAttempts(path)
            self._notes[rank].note(record)
        except OSError as error:
            raise LuwuError(f"{path}: expected to note an attempt in it, found: {error}; mend the disk") from error

    def close(self) -> None:
        """Close the files of `note`, once nobody calls it any more."""
        for notes in self._notes.values():
            notes.close()
        self._notes.clear()

    def tell(self, launcher: LauncherMember, rank: int, report: str) -> float:
        """Take a report; raises ConfigError where the launcher does not run this worker."""
        with self._lock:
            if self._places.launcher_of(rank) is not launcher:
                raise ConfigError(f"worker {rank}: expected one that this launcher runs; join again")
        words = parse_report(report)
        if words["kind"] == "error":
            self.failure = self.failure or _failed(launcher, rank, words)
        else:
            self._on_report(rank, words)
        if words["kind"] in ("result", "stopped"):  # it has no more to do, and needs no other in its place
            with self._lock:
                self._places.finish(rank)
        return time.monotonic()

    def _tell(self, rank: int, event: pb.Event) -> None:
        with self._lock:
            launcher = self._places.launcher_of(rank)
        if launcher is not None:
            cast(LauncherMember, launcher).tell(event)

    def _give(self, grants: Iterable[Grant]) -> list[str]:
        """Give places to launchers; return what the user is to know of it, once the lock is free: saying may wait."""
        said = []
        for given in grants:
            launcher = cast(LauncherMember, given.launcher)
            launcher.tell(pb.Event(places=pb.Places(ranks=given.ranks)))
            said.append(f"{launcher.host} ({launcher.peer}) runs {workers_text(given.ranks)}")
        return said

    def _say_all(self, said: Iterable[str]) -> None:
        for text in said:
            self._say(text)


def _failed(launcher: LauncherMember, rank: int, words: Report) -> LuwuError:
    """Return the error that ended a worker on another machine."""
    try:
        error = reported_error(checked_report(rank, words))
    except WorkerLostError as damaged:
        error = damaged
    return type(error)(f"on {printable(launcher.host)}: {error}")
