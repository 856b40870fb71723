"""The corpus of a run, prepared in a process of its own: `python -m luwu.launch.preparing JOB.json`.

Tokenizers and Parquet want memory that the launcher, which is the server too, must not keep; and a process that notes
how far it is can be stopped at any moment.
"""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from luwu.core.errors import LuwuError, ServerError, WorkerLostError
from luwu.core.exits import Exit
from luwu.core.room import NO_WAIT, Room, SayRoom, log_room
from luwu.data.corpus import Corpus
from luwu.launch.folder import RunFolder
from luwu.launch.job import read_job, write_error
from luwu.launch.processes import LOG_LINES, Ended, read_tail
from luwu.launch.reports import (
    REPORT_DESCRIPTOR,
    Report,
    error_report,
    pipe_reporter,
    reported_error,
    room_reporter,
    room_wait,
)
from luwu.launch.starting import die_with, start_module, start_reporting
from luwu.launch.words import checked_report, typed_error

LOOK_SECONDS = 0.1
"""Seconds between two looks of the launcher at a request to stop."""

TELL_SECONDS = 0.5
"""Seconds between two reports of progress to the launcher."""


def prepare_corpus(
    folder: RunFolder,
    on_progress: Callable[[float, float], None],
    stopped: Callable[[], bool],
    say_room: SayRoom = log_room,
    room: Room = NO_WAIT,
) -> Corpus | None:
    """Prepare the corpus of the run whose job lies in `folder`; None if stopped: the next start continues from there.

    Args:
        folder: the run's folder.
        on_progress: called with bytes of files done and in all.
        stopped: tells whether to stop.
        say_room: called when the preparation waits for room on a full disk, and when it goes on.
        room: the wait for a full disk where the log is made.

    Raises:
        LuwuError: the preparation's error.
    """
    reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
    log = folder.path / "preparing.log"
    start = partial(start_module, "luwu.launch.preparing", folder.job_path)
    started = start_reporting(start, log, 0, lambda _, report: reports.put(report), room)
    process = started.process
    failure: LuwuError | None = None
    try:
        while process.poll() is None:
            if stopped():
                return None
            try:
                report = reports.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            report = checked_report(0, report)
            if report["kind"] == "progress":
                on_progress(report["done"], report["total"])
            elif report["kind"] == "room":
                say_room(room_wait(report))
            else:
                failure = reported_error(report)
    finally:
        process.kill()
        status = process.wait()
    if failure or status:
        raise failure or _error(log, status)
    return Corpus.load(folder.path)


def _error(log_path: Path, status: int) -> LuwuError:
    text = read_tail(log_path)
    last_lines = "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES:]) or "  (empty)"
    return typed_error(text) or WorkerLostError(
        f"preparing the data: expected to finish, but the process {Ended(0, status).in_words()}; "
        f"the last lines of {log_path}:\n{last_lines}"
    )


def main() -> int:
    """Prepare the corpus of the job; the last line of the log names an error."""
    job = read_job(Path(sys.argv[1]))
    die_with(job.launcher_pid)
    report = pipe_reporter(int(os.environ[REPORT_DESCRIPTOR]))
    told = 0.0

    def tell(done: float, total: float) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= TELL_SECONDS:
            told = now
            report({"kind": "progress", "done": done, "total": total})

    room = Room(job.settings.run.disk_full_wait_seconds, room_reporter(report))
    try:
        RunFolder(Path(job.folder)).load_corpus(job.settings, tell, room)
    except LuwuError as error:
        write_error(error)
        with suppress(ServerError):  # the launcher may have ended
            report(error_report(error))
        return Exit.FAILED
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
