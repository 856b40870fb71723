"""Commit points in a plan: the time and the bytes of the steps that are put on the disk, and of those between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from luwu.core.durability import EACH_STEP, CommitPoints
from luwu.plan.luwu_step import OnDisk
from luwu.plan.steps import PhaseTime, StepTime
from luwu.server.forecast import Forecast, Keeps


@dataclass(frozen=True)
class CommitSteps:
    """Steps of a run with commit points.

    Attributes:
        step: mean time of a step.
        point: time of one that is a commit point.
        every: steps from one commit point to the next; ``math.inf``: none until the end.
        records_bytes: bytes of records that a step writes in the mean, over all servers.
        kept_bytes: bytes of kept gradients that it writes beside them.
    """

    step: StepTime
    point: StepTime
    every: float
    records_bytes: float
    kept_bytes: float

    @classmethod
    def of(
        cls, step_time: Callable[[OnDisk], StepTime], server: Forecast, points: CommitPoints, follows: float = 0.0
    ) -> CommitSteps:
        """Work out the steps.

        Args:
            step_time: returns a step's time for its bytes on the disk.
            server: what each server has in memory.
            points: the commit points.
            follows: share of a commit point that is written while later steps are made, up to the next commit point.
        """
        point = step_time(traffic_of(server, server.written_bytes))
        if points.steps == 1:
            return cls(point, point, 1.0, server.written_bytes, server.kept_disk_bytes)
        between = step_time(traffic_of(server, server.written_between_bytes))
        every = float(points.steps) or (max(1.0, points.seconds / between.seconds) if points.seconds else math.inf)
        share = 1 / every
        records = mean_of(server.written_between_bytes, server.written_bytes, share)
        spread = step_time(traffic_of(server, records))
        step = _mean_step(_mean_step(between, point, share), spread, follows)
        return cls(step, _mean_step(point, spread, follows), every, records, server.kept_disk_bytes)

    @property
    def written_bytes(self) -> float:
        """Bytes that a step writes in the mean, over all servers."""
        return self.records_bytes + self.kept_bytes


def keeps_of(points: CommitPoints, servers: int = 1) -> Keeps:
    """Return the gradients that servers keep: all between commit points, else those of the tail, with one server."""
    if points != EACH_STEP:
        return "all"
    return "tail" if servers == 1 else "none"


def traffic_of(server: Forecast, records_bytes: float) -> OnDisk:
    """Return the bytes that a step reads and writes, by phase, when it writes these bytes of records."""
    read = server.parameters_read_bytes
    return OnDisk(read, read, server.states_read_bytes, records_bytes, server.kept_disk_bytes)


def mean_of(between: float, point: float, share: float) -> float:
    """Return the mean of a value over steps of which this share are commit points."""
    return between + (point - between) * share


def _mean_step(between: StepTime, point: StepTime, share: float) -> StepTime:
    phases = tuple(
        PhaseTime(
            first.name,
            mean_of(first.seconds, last.seconds, share),
            {name: mean_of(value, last.parts[name], share) for name, value in first.parts.items()},
        )
        for first, last in zip(between.phases, point.phases, strict=True)
    )
    return StepTime(between.system, between.rows, phases, between.link_bytes)
