"""Runs `luwu train` and notes at each step what the display shows and what the kernel counts.

Settings: settings (of the run), run (its folder), url and key_file (of a server elsewhere, or neither). The last line
is {"steps": [...], "validation_loss": of the run's end}. A step has the times that its workers reported: waited, with
data under way, and of the whole attempt.
"""

from __future__ import annotations

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


def counted() -> dict[str, int]:
    """Bytes that the server's threads read from the disks and wrote to them, as the kernel counts them.

    The other threads of this process are left out: they read parts of libraries and modules that are not, or no
    longer, in the page cache, which can be a tenth of what a small store reads.
    """
    threads = [
        task for task in Path("/proc/self/task").iterdir() if task.joinpath("comm").read_text().startswith("luwu-")
    ]
    counts = [dict(line.split(": ") for line in task.joinpath("io").read_text().splitlines()) for task in threads]
    return {name: sum(int(count[name]) for count in counts) for name in ("read_bytes", "write_bytes")}


class Watch(PlainDisplay):
    """Notes everything, shows nothing."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.reports: defaultdict[int, list[StepReport]] = defaultdict(list)

    def say(self, text: str) -> None:
        """Do nothing; nobody reads the text."""

    def stage(self, text: str, detail: str = "") -> None:
        """Do nothing; nobody reads the text."""

    def step(self, meter: Meter, server: Traffic) -> None:
        """Note the figures of a step that has ended."""
        io, now = counted(), time.monotonic()
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

    def _on_step(self, rank: int, report: Report) -> None:
        self._watch.reports[report["attempt"]].append(cast(StepReport, report))
        super()._on_step(rank, report)


def main() -> None:
    """Train, and print what was noted."""
    replies = take_stdout()
    wanted = settings()
    remote = ServerAccess(url=wanted["url"], key_file=wanted["key_file"]) if wanted.get("url") else None
    watch = Watch()
    folder = RunFolder(Path(wanted["run"]))
    outcome = WatchedRun(build_settings(wanted["settings"]), folder, watch, remote, watch=watch).run()
    noted = {"steps": watch.steps, "validation_loss": outcome.validation_loss}
    replies.write(json.dumps(noted) + "\n")


if __name__ == "__main__":
    main()
