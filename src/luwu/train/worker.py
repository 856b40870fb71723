"""A worker process of a run: `python -m luwu.train.worker JOB.json` with RANK and WORLD_SIZE in the environment."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from luwu.core.errors import LuwuError, ServerError, WorkerLostError
from luwu.core.room import Room
from luwu.launch.folder import RunFolder
from luwu.launch.job import EXIT_FAILED, EXIT_SERVER_LOST, SPARE, read_job, write_error
from luwu.launch.processes import die_with
from luwu.launch.reports import REPORT_DESCRIPTOR, error_report, pipe_reporter, read_rank, room_reporter
from luwu.session.session import choose_place
from luwu.train.worker_log import wait_for_room_in_log


class StopRequest:
    """Remembers that the launcher asked this worker to stop at the end of the step."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def become_worker(pipe: int) -> bool:
    """Import torch, and wait for the place of a lost worker; False where the launcher ended before."""
    import luwu.train.training  # noqa: F401 - what takes time

    rank = read_rank(pipe)
    if rank is None:
        return False
    os.environ["RANK"] = str(rank)
    del os.environ[SPARE]
    return True


def main() -> int:
    """Run the job. The exit status says whose fault an error was, and the log's last line names it."""
    stop = StopRequest()
    job = read_job(Path(sys.argv[1]))
    die_with(job.launcher_pid)
    pipe = int(os.environ[REPORT_DESCRIPTOR])
    if SPARE in os.environ and not become_worker(pipe):
        return 0
    rank, workers = choose_place(None, None)
    report = pipe_reporter(pipe)
    room = Room(job.settings.run.disk_full_wait_seconds, room_reporter(report))
    wait_for_room_in_log(RunFolder(Path(job.folder)).log_path(rank), room)
    try:
        from luwu.train.training import train  # after the signal handler, because torch takes a while to import

        train(job, rank, workers, stop, report, room)
    except LuwuError as error:
        write_error(error)
        with suppress(ServerError):  # the launcher may have ended
            report(error_report(error))
        return EXIT_SERVER_LOST if isinstance(error, (ServerError, WorkerLostError)) else EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
