"""Looks at several runs at once, so that one whose server does not answer holds up no other."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from luwu.control.timeouts import TIMEOUTS
from luwu.watch.runs import WatchedRun

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2 * TIMEOUTS.health_seconds
"""Time in which a server's two answers come, or why there are none is known."""

RATE_SECONDS = TIMEOUTS.progress_seconds + 0.5
"""Time between two looks that make rates, in which each worker and switch has told its counts anew."""


class Looks:
    """Looks at runs, each in a thread of its own, which nobody needs to wait for."""

    def __init__(self) -> None:
        self._threads: dict[WatchedRun, threading.Thread] = {}

    def look(self, runs: Sequence[WatchedRun], seconds: float) -> None:
        """Refresh the runs. Returns when all of them have been, and after ``seconds`` at the latest.

        A run whose last look has not ended keeps its state of before, and gets no other look until then.
        """
        until = time.monotonic() + seconds
        for run in runs:
            under_way = self._threads.get(run)
            if under_way is None or not under_way.is_alive():
                self._threads[run] = threading.Thread(target=_refresh, args=(run,), name="luwu-look", daemon=True)
                self._threads[run].start()
        for run in runs:
            self._threads[run].join(max(0.0, until - time.monotonic()))

    def look_at_all(self, runs: Sequence[WatchedRun], seconds: float = ANSWER_SECONDS) -> None:
        """Refresh the runs until their files are read, however long they are; for servers' answers see `look`."""
        self.look(runs, seconds)
        while unread := [run for run in runs if run.reading is not None]:
            self.look(unread, seconds)

    def look_for_rates(self, runs: Sequence[WatchedRun], wait: Callable[[float], None] = time.sleep) -> None:
        """Look at all runs, and once more at those under way: what they do a second is known from two looks on."""
        self.look_at_all(runs)
        if live := [run for run in runs if run.state["live"]]:
            wait(RATE_SECONDS)
            self.look_at_all(live)


async def in_thread(call: Callable[[], ResultT]) -> ResultT:
    """Return what a function returns, called in a thread of its own; raises its error.

    asyncio's own threads are few, which servers that do not answer would take, and the process would wait for them at
    its end.
    """
    found: Future[ResultT] = Future()
    found.set_running_or_notify_cancel()  # whoever waits no longer leaves it alone

    def work() -> None:
        try:
            found.set_result(call())
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=work, name="luwu-look", daemon=True).start()
    return await asyncio.wrap_future(found)


def _refresh(run: WatchedRun) -> None:
    try:
        run.refresh()
    except Exception:
        log.exception("could not look at %s", run.where)
