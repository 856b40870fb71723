"""One worker process of a run: `python -m luwu.launch.worker JOB.json` with RANK and WORLD_SIZE in the environment."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from luwu.errors import LuwuError, ServerError, WorkerLostError
from luwu.launch.job import EXIT_FAILED, EXIT_SERVER_LOST, Job, write_error

PR_SET_PDEATHSIG = 1


class StopRequest:
    """Remembers that the launcher asked this worker to stop at the end of the step."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def die_with(launcher_pid: int) -> None:
    """Have the kernel kill this process when the launcher dies: a second belt under the endpoint's own."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher_pid:  # it died before the line above
        os._exit(EXIT_SERVER_LOST)


def main() -> int:
    """Run the job; the exit status says whose fault an error was, the last line of the log what it was."""
    stop = StopRequest()
    job = Job.read(Path(sys.argv[1]))
    die_with(job.launcher_pid)
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        from luwu.launch.training import train  # after the signal handler, because torch takes a while to import

        train(job, rank, workers, stop)
    except LuwuError as error:
        write_error(error)
        return EXIT_SERVER_LOST if isinstance(error, (ServerError, WorkerLostError)) else EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
