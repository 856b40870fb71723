"""A native server as the set of workers uses it, and as it is lent to callers for one call each."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from luwu.core.errors import ServerError


class Core(Protocol):
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

    def close(self) -> None:
        """Fail the run, and return when every step that was answered is on the disk."""
        ...

    def failure(self) -> str | None:
        """Return the message of the error that the run failed with, or None."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counts since the store was opened, and its committed step."""
        ...


class ReturnCore(Core, Protocol):
    """A native server that lets another worker take the place of a lost one."""

    def lose_worker(self, rank: int) -> None:
        """Let go of a lost worker: an attempt that it was in is void, and another may take its place."""
        ...

    def wait_for_place(self, rank: int, at_most_seconds: float) -> bool:
        """Return True once nothing of a lost worker is left at its place, or the run has failed; False: not in time."""
        ...


CoreT = TypeVar("CoreT", bound=Core)


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
