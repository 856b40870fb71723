"""The stage of a run that the user sees, and the pauses in it because a disk is full."""

from __future__ import annotations

from luwu.core.room import RoomWait
from luwu.observe.display import Display


class Stages:
    """Shows the stage that a run is in; after a pause it is shown again."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._now = ("", "")
        self._snapshot_failure = ""

    def show(self, text: str, detail: str = "") -> None:
        """Show a stage and how far it is."""
        self._now = (text, detail)
        self._display.stage(text, detail)

    def show_room(self, wait: RoomWait | None) -> None:
        """Show that a full disk pauses the run, or with None that it goes on."""
        self._display.say("there is room again; it goes on" if wait is None else str(wait))
        if wait is None:
            self._display.stage(*self._now)
        else:
            self._display.stage("paused: a disk is full")

    def say_failure(self, failure: str) -> None:
        """Say once why the last snapshot failed; empty: it did not."""
        if failure and failure != self._snapshot_failure:
            self._display.say(f"{failure}; training goes on")
        self._snapshot_failure = failure
