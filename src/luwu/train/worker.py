"""The workers of a run: `python -m luwu.train.worker JOB.json`, which imports torch and forks a process for each."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from luwu.core.errors import LuwuError, ServerError, WorkerLostError
from luwu.core.exits import Exit
from luwu.core.room import Room
from luwu.launch.folder import RunFolder
from luwu.launch.forking import become_worker
from luwu.launch.job import read_job, write_error
from luwu.launch.reports import REPORT_DESCRIPTOR, error_report, pipe_reporter, room_reporter
from luwu.session.session import choose_place
from luwu.train.worker_log import wait_for_room_in_log


class StopRequest:
    """Remembers that the launcher asked this worker to stop at the end of the step."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def prepare() -> None:
    """Import what takes time."""
    import luwu.train.training  # noqa: F401


def main() -> int:
    """Serve as the template of the workers, and run the job in each fork.

    A fork's exit status says whose fault an error was, and its log's last line names it.
    """
    stop = StopRequest()
    if not become_worker(prepare):
        return Exit.DONE
    job = read_job(Path(sys.argv[1]))
    rank, workers = choose_place(None, None)
    report = pipe_reporter(int(os.environ[REPORT_DESCRIPTOR]))
    room = Room(job.settings.run.disk_full_wait_seconds, room_reporter(report))
    wait_for_room_in_log(RunFolder(Path(job.folder)).log_path(rank), room)
    try:
        from luwu.train.training import train  # not above: the template imports it where it can bear an error

        train(job, rank, workers, stop, report, room)
    except LuwuError as error:
        write_error(error)
        with suppress(ServerError):  # the launcher may have ended
            report(error_report(error))
        return Exit.SERVER_LOST if isinstance(error, (ServerError, WorkerLostError)) else Exit.FAILED
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
