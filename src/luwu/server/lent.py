"""A native server as the set of workers uses it, and as it is lent to callers for one call each."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from luwu.core.closing import close_after
from luwu.core.errors import LuwuError, ServerError
from luwu.core.room import LOOK_SECONDS
from luwu.server.tracing import TracingCore

log = logging.getLogger(__name__)


class Core(TracingCore, Protocol):
    """Interface of a native server, as membership uses it: an open store, its pipeline, and its data plane."""

    @property
    def initialised(self) -> bool:
        """True if the store holds first values."""
        ...

    def set_segments(self, block: int, segments: list[tuple[int, int]]) -> None:
        """Set the optimizer group of each part of a block: ascending (end element, group)."""
        ...

    def worker_left(self, rank: int) -> None:
        """Note that the worker makes no more steps; fails the run when others are in one, or begin one later."""
        ...

    def fail_run(self, message: str) -> None:
        """Fail the run: every wait raises WorkerLostError with this message."""
        ...

    def take_snapshot(self) -> int:
        """Take a snapshot of the last step that was answered, and return the step."""
        ...

    def make_durable(self, at_most_seconds: float) -> bool:
        """Return True once the last step that was answered is on the disk, commit point or not; False: not in time.

        Raises the store's error where it cannot get there.
        """
        ...

    def finish(self, at_most_seconds: float) -> bool:
        """Fail the run, and return True once every step that was answered is on the disk, or cannot get there.

        False: that takes longer. A write that finds no room waits for it meanwhile.
        """
        ...

    def close(self) -> None:
        """As `finish`, without a wait for room. Raises the store's error where a step that was answered is lost."""
        ...

    def failure(self) -> LuwuError | None:
        """Return the error that the run failed with, or None."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened, and its committed step."""
        ...

    def look(self) -> bytes:
        """Return what the server does with each block now: a byte each, `luwu.core.progress.BlockView`."""
        ...


class ReturnCore(Core, Protocol):
    """A native server that lets another worker take the place of a lost one."""

    def lose_worker(self, rank: int) -> int | None:
        """Let go of a lost worker: an attempt that it was in is void, and another may take its place.

        Returns the number of attempts that ended before the one that is void now; None: none is.
        """
        ...

    def wait_for_place(self, rank: int, at_most_seconds: float) -> bool:
        """Return True once nothing of a lost worker is left at its place, or the run has failed; False: not in time."""
        ...


CoreT = TypeVar("CoreT", bound=Core)


def end_core(core: Core, goes_on: Callable[[dict[str, Any]], bool]) -> None:
    """End a native server once every step that was answered is on the disk.

    Args:
        core: the server; it may wait for room on its disk.
        goes_on: called with the server's stats meanwhile; False: no more wait for room.

    Raises:
        StoreError, StoreSpaceError: a step that was answered is lost.
    """
    if (unwritten := core.stats().get("unwritten", 0)) > 1:
        log.info("puts the last %d steps on the disk", unwritten)
    try:
        finished = False
        while not finished:
            finished = core.finish(LOOK_SECONDS)
            if not goes_on(core.stats()):
                break
    except BaseException as error:  # Ctrl-C
        close_after(error, core.close)
        raise
    core.close()


class Lent(Generic[CoreT]):
    """A native server as callers see it. Only a call that is under way refers to the server itself.

    Frames of a caller may outlive the server: an error that the run keeps holds those that it passed through, and the
    store stays locked until the last reference to its server is gone.
    """

    def __init__(self, core: CoreT) -> None:
        self._core: CoreT | None = core

    def __getattr__(self, name: str) -> Any:
        core = self._core
        if core is None:
            raise ServerError("the server has closed the store; join again when it serves the next run")
        return getattr(core, name)

    def end(self) -> None:
        """Let go of the server; calls after this one raise ServerError."""
        self._core = None
