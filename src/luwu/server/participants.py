"""Participants that have joined a server, each with a session's token and a queue of events."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from luwu.control import control_pb2 as pb
from luwu.core.errors import AuthenticationError, LuwuError

TOKEN_BYTES = 32
LONGEST_TEXT_CHARACTERS = 200
MOST_ENDED = 4096
"""Number of ended sessions that are remembered, so that their workers can be told the reason."""


def on_one_line(text: str) -> str:
    """Make a peer's text fit into a line of the log: cut it, and escape characters that cannot be printed."""
    letters = text[:LONGEST_TEXT_CHARACTERS]
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in letters)
    return shown if len(text) <= LONGEST_TEXT_CHARACTERS else f"{shown}..."


@dataclass(eq=False)
class Participant:
    """A worker, a switch or a launcher that has joined. ``events`` are sent on its watch; None ends the watch.

    ``left``: the participant left on purpose. ``failure``: its own reason that it cannot go on.
    """

    name: str
    peer: str
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES), repr=False)
    joined_at: float = field(default_factory=time.monotonic)
    watched: bool = False
    ended: bool = False
    ended_at: float = 0.0
    left: bool = False
    failure: str = ""
    events: queue.SimpleQueue[pb.Event | None] = field(default_factory=queue.SimpleQueue, repr=False)

    def tell(self, event: pb.Event) -> None:
        """Send an event on the watch."""
        self.events.put(event)

    @property
    def end(self) -> str:
        """Describe the end of its session."""
        if self.left:
            return "left"
        return f"failed: {self.failure}" if self.failure else "ended without leaving"

    def end_watch(self) -> None:
        """Let the watch end after what was sent."""
        self.events.put(None)


@dataclass(eq=False, kw_only=True)
class LauncherMember(Participant):
    """A launcher on another machine, which runs workers of this run. ``host``: the name of its machine."""

    host: str


class Participants:
    """Finds participants by token, and remembers the ends of others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: dict[bytes, Participant] = {}
        self._ended: OrderedDict[bytes, LuwuError] = OrderedDict()

    def add(self, participant: Participant) -> None:
        """Add a participant."""
        with self._lock:
            self._present[participant.token] = participant

    def find(self, token: bytes) -> Participant:
        """Return the participant with this token.

        Raises:
            AuthenticationError: nobody has it. LuwuError: what its session ended with.
        """
        with self._lock:
            found, error = self._present.get(token), self._ended.get(token)
        if found is not None:
            return found
        if error is not None:
            raise type(error)(str(error))
        raise AuthenticationError("session: the server does not know it, maybe it was started again; join again")

    def remove(self, participant: Participant, error: LuwuError) -> None:
        """Remove a participant. Later calls with its token get this error."""
        with self._lock:
            if self._present.pop(participant.token, None) is not None:
                self._ended[participant.token] = error
            while len(self._ended) > MOST_ENDED:
                self._ended.popitem(last=False)

    def all(self) -> list[Participant]:
        """Return all participants that are present."""
        with self._lock:
            return list(self._present.values())
