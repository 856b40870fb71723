"""A thread that tells the server what this worker does."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.core.errors import LuwuError
from luwu.core.progress import Activity

Look = Callable[[], Activity | None]
"""Function that returns what the worker does; None: its model is gone."""

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_LUWU = str(Path(__file__).parents[1])


class ProgressTeller:
    """Tells the server what this worker does, from `start` until `stop`. Make it in the thread that trains.

    Args:
        look: looks what the worker does.
        attempts: returns the number of attempts that have ended.
        send: sends a message; raises LuwuError once the session has ended.
        timeouts: timeouts of the network.
    """

    def __init__(
        self, look: Look, attempts: Callable[[], int], send: Callable[[pb.ProgressRequest], None], timeouts: Timeouts
    ) -> None:
        self._look = look
        self._attempts = attempts
        self._send = send
        self._timeouts = timeouts
        self._trains = threading.get_ident()
        self._told: tuple[int, Activity] | None = None
        self._told_at = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="luwu-progress", daemon=True)

    def start(self) -> None:
        """Begin to tell, in a thread that nobody needs to wait for."""
        self._thread.start()

    def stop(self) -> None:
        """Tell nothing any more."""
        self._ended.set()

    def tell(self, now: float) -> bool:
        """Tell the server what has changed, or after a while that nothing has. False: there is nobody to tell about.

        Args:
            now: time of the monotonic clock, in seconds.
        """
        activity = self._look()
        if activity is None:
            return False
        told = self._attempts(), activity
        moved = told != self._told
        if not moved and now - self._told_at < self._timeouts.idle_progress_seconds:
            return True
        self._told, self._told_at = told, now
        place = "" if moved else place_of(sys._current_frames().get(self._trains))
        self._send(
            pb.ProgressRequest(
                attempts=told[0],
                phase=activity.phase.name,
                block=activity.block,
                acquired=activity.acquired,
                pushed=activity.pushed,
                place=place,
            )
        )
        return True

    def _run(self) -> None:
        while not self._ended.wait(self._timeouts.progress_seconds):
            try:
                if not self.tell(time.monotonic()):
                    return
            except LuwuError:  # the session has ended, which its own calls tell
                return


def place_of(frame: FrameType | None) -> str:
    """Return the place in the user's program: ``train.py line 12, in load``. Libraries and LuWu itself do not count.

    None, where the thread that made the teller has ended, is an unknown place.
    """
    if frame is None:
        return "an unknown place"
    inner: FrameType | None = frame
    while inner is not None and inner.f_code.co_filename.startswith((*_LIBRARIES, _LUWU, "<frozen")):
        inner = inner.f_back
    found = inner or frame
    return f"{Path(found.f_code.co_filename).name} line {found.f_lineno}, in {found.f_code.co_name}"
