"""Notices when a store that is served waits for room on its disk, and when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luwu.store.room import RoomWait, SayRoom


class RoomWatch:
    """Tells of each pause once, and of its end; to be asked now and then."""

    def __init__(self, say: SayRoom) -> None:
        self._say = say
        self._last: RoomWait | None = None

    def look(self, stats: Mapping[str, Any]) -> None:
        """Compare a native server's stats with the last ones."""
        found = stats.get("waits_for_room")
        wait = None if found is None else RoomWait(*found)
        if wait != self._last:
            self._last = wait
            self._say(wait)
