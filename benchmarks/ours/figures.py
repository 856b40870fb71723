"""Runs `luwu train` and notes at each step what the display shows and what the kernel counts.

Settings: settings (of the run), run (its folder), url and key_file (of a server elsewhere, or neither). The last line
is {"began": what the kernel had counted before the workers started, "steps": [...]}.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from kit.child import settings, take_stdout

from luwu.launch.folder import RunFolder
from luwu.launch.job import RemoteServer
from luwu.launch.local import LocalRun
from luwu.launch.settings import build_settings
from luwu.observe.display import PlainDisplay, Traffic, figures
from luwu.observe.meter import Meter


def counted() -> dict[str, int]:
    """Bytes that this process, the server, read from the disks and wrote to them, as the kernel counts them."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {name: int(lines[name]) for name in ("read_bytes", "write_bytes")}


class Watch(PlainDisplay):
    """Notes everything, shows nothing."""

    def __init__(self) -> None:
        self.began: dict[str, int] = {}
        self.steps: list[dict[str, Any]] = []

    def say(self, text: str) -> None:
        """Do nothing; nobody reads the text."""

    def stage(self, text: str, detail: str = "") -> None:
        """Note the kernel's counts when the workers start, and with them the server's work."""
        if text == "starting workers":
            self.began = counted()

    def step(self, meter: Meter, server: Traffic) -> None:
        """Note the figures of a step that has ended."""
        io, now = counted(), time.monotonic()
        self.steps.append(
            {
                "time": now,
                "io": io,
                "shown": dict(figures(meter, server)),
                "server": {name: server[name] for name in ("bytes_read", "bytes_written") if name in server},
                "tokens_per_second": meter.tokens_per_second(),
                "seconds_left": meter.seconds_left(),
            }
        )


def main() -> None:
    """Train, and print what was noted."""
    replies = take_stdout()
    wanted = settings()
    remote = RemoteServer(url=wanted["url"], key_file=wanted["key_file"]) if wanted.get("url") else None
    watch = Watch()
    LocalRun(build_settings(wanted["settings"]), RunFolder(Path(wanted["run"])), watch, remote).run()
    replies.write(json.dumps({"began": watch.began, "steps": watch.steps}) + "\n")


if __name__ == "__main__":
    main()
