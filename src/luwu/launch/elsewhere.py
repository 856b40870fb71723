"""The launcher's stand-in for a server on the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luwu.core.room import RoomWait
from luwu.store.folders import make_folder
from luwu.store.opening import lock_folder


class ServerElsewhere:
    """Stands for a server on the network: holds the run folder for this launcher, and knows no counts."""

    socket_path = None

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._lock = lock_folder(folder, "run folder")

    def __enter__(self) -> ServerElsewhere:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another launcher have the run folder."""
        self._lock.close()

    def stats(self) -> dict[str, Any]:
        """Nothing: that server is watched where it runs."""
        return {}

    def figures(self) -> dict[str, Any]:
        """Nothing, as `stats`."""
        return {}

    def note_wait(self, wait: RoomWait | None) -> None:
        """Nothing: that server has no part in this run folder."""

    def behind(self) -> dict[str, float]:
        """Nothing, as `stats`."""
        return {}
