"""Notices when a served store waits for room on its disk, and when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luwu.core.room import RoomWait, SayRoom


class RoomWatch:
    """Reports each pause once, and its end. Call `look` again and again."""

    def __init__(self, say: SayRoom) -> None:
        self._say = say
        self._last: RoomWait | None = None

    def look(self, stats: Mapping[str, Any]) -> None:
        """Compare a native server's stats with the last ones, and report a difference."""
        found = stats.get("waits_for_room")
        wait = None if found is None else RoomWait(*found)
        if wait != self._last:
            self._last = wait
            self._say(wait)
