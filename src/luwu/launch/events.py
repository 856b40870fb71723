"""Events of a run's processes in launcher.log, where they stay when the terminal that showed them is gone."""

from __future__ import annotations

import time

from luwu.core.room import append_line
from luwu.launch.folder import RunFolder


def log_event(folder: RunFolder, text: str) -> None:
    """Append an event that nobody has planned, as a warning with the time; a full disk goes without it."""
    clock = time.strftime("%Y-%m-%d %H:%M:%S")
    append_line(folder.launcher_log_path, f"{clock} WARNING {' '.join(text.splitlines())}")
