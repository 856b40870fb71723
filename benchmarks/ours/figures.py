"""Runs `luwu train` and notes at each step what the display shows and what the kernel counts.

Settings: settings (of the run), run (its folder), url and key_file (of a server elsewhere, or neither). The last line
is {"began": what the kernel had counted before the workers started, "steps": [...], "validation_loss": of the run's
end}. A step has the times that its workers reported: waited, with data under way, and of the whole attempt.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

from kit.child import settings, take_stdout

from luwu.launch.folder import RunFolder
from luwu.launch.job import ServerAccess
from luwu.launch.local import LocalRun, Report
from luwu.launch.settings import build_settings
from luwu.observe.display import PlainDisplay, Traffic, figures
from luwu.observe.meter import Meter, StepReport


class KernelCounts:
    """Bytes that this process, the server, read from the disks and wrote to them, as the kernel counts them.

    The threads that run Python are left out, which have the process's name: they read modules and libraries that are
    not, or no longer, in the page cache, and these can be a tenth of what a small store reads. The process's counts
    keep those of threads that have ended, so the last ones of each such thread are kept, too.
    """

    def __init__(self) -> None:
        self._python: dict[str, dict[str, int]] = {}

    def now(self) -> dict[str, int]:
        """Return the bytes read and written until now."""
        process = Path("/proc/self")
        name = (process / "comm").read_text()
        for task in process.joinpath("task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                if (task / "comm").read_text() == name:
                    self._python[task.name] = bytes_of(task)
        left_out = self._python.values()
        return {count: total - sum(thread[count] for thread in left_out) for count, total in bytes_of(process).items()}


def bytes_of(task: Path) -> dict[str, int]:
    """Return the bytes that a process or thread had from disks and gave them, see proc_pid_io(5)."""
    lines = dict(line.split(": ") for line in (task / "io").read_text().splitlines())
    return {name: int(lines[name]) for name in ("read_bytes", "write_bytes")}


class Watch(PlainDisplay):
    """Notes everything, shows nothing."""

    def __init__(self) -> None:
        self._counts = KernelCounts()
        self.began: dict[str, int] = {}
        self.steps: list[dict[str, Any]] = []
        self.reports: defaultdict[int, list[StepReport]] = defaultdict(list)

    def say(self, text: str) -> None:
        """Do nothing; nobody reads the text."""

    def stage(self, text: str, detail: str = "") -> None:
        """Note the kernel's counts when the workers start, and with them the server's work."""
        if text == "starting workers":
            self.began = self._counts.now()

    def step(self, meter: Meter, server: Traffic) -> None:
        """Note the figures of a step that has ended."""
        io, now = self._counts.now(), time.monotonic()
        assert meter.last is not None
        self.steps.append(
            {
                "time": now,
                "io": io,
                "shown": dict(figures(meter, server)),
                "server": {name: server[name] for name in ("bytes_read", "bytes_written") if name in server},
                "tokens_per_second": meter.tokens_per_second(),
                "seconds_left": meter.seconds_left(),
                "workers": [
                    (report["waited_seconds"], report["busy_seconds"], report["ended"] - report["began"])
                    for report in self.reports.pop(meter.last.attempt)
                ],
            }
        )


class WatchedRun(LocalRun):
    """Notes the workers' reports before a meter makes one record of them."""

    def __init__(self, *arguments: Any, watch: Watch) -> None:
        super().__init__(*arguments)
        self._watch = watch
        self._handlers["step"] = self._note_step

    def _note_step(self, rank: int, report: Report) -> None:
        self._watch.reports[report["attempt"]].append(cast(StepReport, report))
        self.taken.step(rank, report)


def main() -> None:
    """Train, and print what was noted."""
    replies = take_stdout()
    wanted = settings()
    remote = ServerAccess(url=wanted["url"], key_file=wanted["key_file"]) if wanted.get("url") else None
    watch = Watch()
    folder = RunFolder(Path(wanted["run"]))
    outcome = WatchedRun(build_settings(wanted["settings"]), folder, watch, remote, watch=watch).run()
    noted = {"began": watch.began, "steps": watch.steps, "validation_loss": outcome.validation_loss}
    replies.write(json.dumps(noted) + "\n")


if __name__ == "__main__":
    main()
