"""Bytes that a step moves between a run's store and memory, as its settings are and as they might be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from luwu.core.durability import EACH_STEP, CommitPoints
from luwu.launch.settings import Settings
from luwu.plan.durability import keeps_of, mean_of
from luwu.plan.machines import whole_mebibytes
from luwu.plan.planning import UNLIMITED
from luwu.server.forecast import Forecast, forecast

TEN_STEPS = CommitPoints(10, 0.0)
"""Commit points that a change of `durable` is worked out for."""


class Moved(NamedTuple):
    """Bytes that a step reads and writes."""

    read: float = 1.0
    written: float = 1.0

    def over(self, other: Moved) -> Moved:
        """Return these bytes over others; 1 where those are none."""
        return Moved(
            self.read / other.read if other.read else 1.0, self.written / other.written if other.written else 1.0
        )


UNCHANGED = Moved()


@dataclass(frozen=True)
class DiskChanges:
    """Bytes of a step with one setting changed at a time, over those that it has now.

    Attributes:
        durable: every tenth step on the disk instead of each; 1: it is not each step now.
        memory: a budget that has room for all parameters, states and gradients; 1: it has room.
        memory_bytes: this budget.
        states: optimizer states of 8 bits; 1: they have them, or the optimizer has none such.
    """

    durable: Moved = UNCHANGED
    memory: Moved = UNCHANGED
    memory_bytes: int = 0
    states: Moved = UNCHANGED

    @classmethod
    def of(cls, settings: Settings, block_elements: Sequence[int]) -> DiskChanges:
        """Work out the changes.

        Args:
            settings: of the run.
            block_elements: elements of the root, then of every other block, padding included; all are trained.
        """
        run, optimizer = settings.run, settings.optimizer.name

        def forecast_with(memory: int, points: CommitPoints, optimizer: str = optimizer) -> Forecast:
            return forecast(
                block_elements, dtype=run.dtype, optimizer=optimizer, folders=max(1, len(run.stores)),
                memory_bytes=memory, workers=run.workers, keeps=keeps_of(points),
            )  # fmt: skip

        points = run.commit_points
        now = _moved(forecast_with(run.memory, points), points)
        whole = forecast_with(UNLIMITED, points)
        tenth = small = UNCHANGED
        if points == EACH_STEP:
            tenth = _moved(forecast_with(run.memory, TEN_STEPS), TEN_STEPS).over(now)
        if optimizer == "adamw":
            small = _moved(forecast_with(run.memory, points, "adamw8bit"), points).over(now)
        return cls(
            tenth, _moved(whole, points).over(now), whole_mebibytes(whole.memory_bytes), small
        )  # fmt: skip


def _moved(server: Forecast, points: CommitPoints) -> Moved:
    """Return the mean bytes of a step; commit points by time are taken as rare."""
    share = 1 / points.steps if points.steps else 0.0
    kept = 0 if points == EACH_STEP else server.kept_disk_bytes
    return Moved(
        2 * server.parameters_read_bytes + server.states_read_bytes + kept,
        mean_of(server.written_between_bytes, server.written_bytes, share) + kept,
    )
