"""A worker's share of a batch that is divided by the workers' speeds, and the time that the share takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class BatchShare(NamedTuple):
    """A worker's rows of one attempt's batch.

    Attributes:
        rows: the rows, as a slice of the batch.
        weight: factor of the mean loss of these rows, with which the step is that of the whole batch's mean loss.
        counts: numbers of rows of all workers, by rank.
    """

    rows: slice
    weight: float
    counts: tuple[int, ...]

    @staticmethod
    def of(counts: Sequence[int], rank: int) -> BatchShare:
        """Return the share of a rank. The server divides the sum of all gradients by the number of workers."""
        first, own, batch = sum(counts[:rank]), counts[rank], sum(counts)
        return BatchShare(slice(first, first + own), own * len(counts) / batch, tuple(counts))


class WorkTimer:
    """Time of a worker's attempt without waits for the server. Times are of one clock, in seconds.

    Attributes:
        seconds: time of the attempt that ended last; 0: it was not timed.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin: tuple[float, float] | None = None

    @property
    def runs(self) -> bool:
        """True from the begin of an attempt to its end."""
        return self._begin is not None

    def begin(self, now: float, waited: float) -> None:
        """Begin an attempt. ``waited``: seconds that the worker has waited since it joined."""
        self._begin = now, waited

    def end(self, now: float, waited: float) -> None:
        """End the attempt. One that was not begun has no time."""
        began, self._begin = self._begin, None
        self.seconds = 0.0 if began is None else max(0.0, now - began[0] - (waited - began[1]))

    def drop(self) -> None:
        """End an attempt that was given up: its time says nothing."""
        self._begin, self.seconds = None, 0.0
