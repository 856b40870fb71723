"""A thread that tells the server what this worker does."""

from __future__ import annotations

import logging
import mmap
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Protocol

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.core.errors import LuwuError
from luwu.core.progress import Activity

Look = Callable[[], Activity | None]
"""Function that returns what the worker does; None: its model is gone."""

_LIBRARIES = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_NOT_THE_USERS = (*(f"{folder}/" for folder in (*_LIBRARIES, Path(__file__).parents[1])), "<frozen")

log = logging.getLogger(__name__)


class Sender(Protocol):
    """A session, as far as its progress needs it."""

    @property
    def attempts(self) -> int:
        """Attempts that have ended."""
        ...

    def link_counts(self) -> pb.LinkCounts | None:
        """Return what this worker's links have carried; None: there are none yet."""
        ...

    def send_progress(self, progress: pb.ProgressRequest) -> None:
        """Send a message and wait for nothing; raises LuwuError once the session has ended."""
        ...

    def send_trace(self) -> None:
        """Send this worker's records of a trace that has ended, where there are such."""
        ...


class ProgressTeller:
    """Tells the server what this worker does, from `start` until `stop`. Make it in the thread that trains.

    The thread keeps neither the session nor the model.

    Args:
        look: looks what the worker does.
        sender: the session.
        timeouts: timeouts of the network.
    """

    def __init__(self, look: Look, sender: Sender, timeouts: Timeouts) -> None:
        self._look = look
        self._sender = weakref.ref(sender)
        self._timeouts = timeouts
        self._trains = threading.get_ident()
        self._told: tuple[int, Activity] | None = None
        self._told_at = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="luwu-progress", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def stop(self) -> None:
        """Tell nothing any more. Returns when the thread has ended, after ``close_seconds`` at the latest."""
        self._ended.set()
        self._thread.join(self._timeouts.close_seconds)

    def tell(self, now: float) -> bool:
        """Tell the server what has changed, or after a while that nothing has. False: there is nobody to tell about.

        Args:
            now: time of the monotonic clock, in seconds.
        """
        activity, sender = self._look(), self._sender()
        if activity is None or sender is None:
            return False
        told = sender.attempts, activity
        moved = told != self._told
        if not moved and now - self._told_at < self._timeouts.idle_progress_seconds:
            return True
        self._told, self._told_at = told, now
        place = "" if moved else place_of(sys._current_frames().get(self._trains))
        sender.send_progress(
            pb.ProgressRequest(
                attempts=told[0],
                phase=activity.phase.name,
                block=_as_text(activity.block),
                acquired=activity.acquired,
                pushed=activity.pushed,
                place=_as_text(place),
                memory_bytes=_resident_bytes(),
                link=sender.link_counts(),
            )
        )
        return True

    def _send_trace(self) -> None:
        """Send the records of a trace that has ended, if any."""  # apart, so that the thread keeps no session
        sender = self._sender()
        if sender is not None:
            sender.send_trace()

    def _run(self) -> None:
        while not self._ended.wait(self._timeouts.progress_seconds):
            try:
                if not self.tell(time.monotonic()):
                    return
                self._send_trace()
            except LuwuError:  # the session has ended, which its own calls tell
                return
            except Exception:
                log.warning("the server is told no more of this worker's progress", exc_info=True)
                return


def _resident_bytes() -> int:
    """Return the bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def _as_text(name: str) -> str:
    """Make text of a name that may hold bytes of another encoding, such as a path."""
    return name.encode("utf-8", "backslashreplace").decode()


def place_of(frame: FrameType | None) -> str:
    """Return the place in the user's program: ``train.py line 12, in load``. Libraries and LuWu itself do not count.

    None, where the thread that made the teller has ended, is an unknown place.
    """
    if frame is None:
        return "an unknown place"
    inner: FrameType | None = frame
    while inner is not None and inner.f_code.co_filename.startswith(_NOT_THE_USERS):
        inner = inner.f_back
    found = inner or frame
    return f"{Path(found.f_code.co_filename).name} line {found.f_lineno}, in {found.f_code.co_name}"
