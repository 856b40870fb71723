"""Pipeline schedules, played through: idle time follows from dependencies, places and memory, not from formulas.

| schedule | places of the model's parts | backward | published in |
|---|---|---|---|
| gpipe | one part a stage | whole, after all forwards | arXiv 1811.06965 |
| 1f1b | one part a stage | whole, as early as it can | arXiv 2006.09503 |
| interleaved | several parts a stage, round and round | whole | arXiv 2104.04473 |
| zero_bubble | one part a stage | of inputs first, of weights where there is room | arXiv 2401.10241 |
| hanayo | several parts a stage, in waves: to the last stage and back | whole | arXiv 2308.15762 |
| bitpipe | as interleaved, two replicas in opposite directions | whole | arXiv 2410.19367 |
| zeropp | as interleaved | of weights where there is room | arXiv 2402.03791 |

Micro-batches start as soon as a stage's limit of those in flight allows. Of a few such limits the best is taken.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from luwu.core.errors import ConfigError
from luwu.plan.names import find_preset

FORWARD, BACKWARD, WEIGHTS = "F", "B", "W"


@dataclass(frozen=True)
class Schedule:
    """Schedule of a pipeline. ``split``: backward in two halves; ``waves``: parts turn round at both ends."""

    name: str
    split: bool = False
    waves: bool = False
    both_ways: bool = False
    all_forwards_first: bool = False
    default_parts: int = 1


SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule("gpipe", all_forwards_first=True),
        Schedule("1f1b"),
        Schedule("interleaved", default_parts=2),
        Schedule("zero_bubble", split=True),
        Schedule("hanayo", waves=True, default_parts=2),
        Schedule("bitpipe", waves=True, both_ways=True, default_parts=2),
        Schedule("zeropp", split=True, default_parts=2),
    )
}


@dataclass(frozen=True)
class PartSeconds:
    """Seconds of one micro-batch in a stage as a whole (all its parts): forward, and both halves of backward."""

    forward: float
    backward_inputs: float
    backward_weights: float
    hop: float = 0.0
    """Seconds from one stage to the next."""


@dataclass(frozen=True)
class Task:
    """A task of a stage: from ``start`` to ``end``, in seconds."""

    kind: str
    stage: int
    micro_batch: int
    part: int
    start: float
    end: float


@dataclass(frozen=True)
class PipelineRun:
    """A step of a pipeline, played through. ``in_flight``: most micro-batches that a stage held at a time."""

    seconds: float
    busy_seconds: float
    in_flight: int
    tasks: tuple[Task, ...]

    @property
    def bubble(self) -> float:
        """Idle time as a share of a stage's work."""
        return self.seconds / self.busy_seconds - 1


def play(name: str, stages: int, micro_batches: int, times: PartSeconds, parts: int | None = None) -> PipelineRun:
    """Play one step.

    Args:
        name: name of the schedule, one of `SCHEDULES`.
        stages: number of stages of the pipeline.
        micro_batches: number of micro-batches of a step; for ``bitpipe`` an even number, half of them each way.
        times: seconds of one micro-batch in a stage.
        parts: number of parts of the model for each stage; None: as the schedule usually has it.

    Raises:
        ConfigError: there is no such schedule, or the numbers do not fit it.
    """
    schedule = find_preset("schedule", name, SCHEDULES)
    if stages < 1 or micro_batches < 1:
        raise ConfigError(f"pipeline: expected stages and micro-batches, found {stages} and {micro_batches}")
    if schedule.both_ways and micro_batches % 2:
        raise ConfigError(f"{name}: expected an even number of micro-batches, found {micro_batches}")
    parts = parts or schedule.default_parts
    policies = (Policy(0),) if parts == 1 and not schedule.both_ways else POLICIES
    runs = [_Player(schedule, stages, micro_batches, times, parts, policy).run() for policy in policies]
    return min((run for run in runs if run is not None), key=lambda run: run.seconds)


@dataclass(frozen=True)
class Policy:
    """Policy of a stage with several parts. ``room``: pipelines' lengths of micro-batches that it takes in.

    ``deepest_first``: of forwards the one nearest to the end; otherwise parts take turns by groups of micro-batches.
    """

    room: int
    deepest_first: bool = False


POLICIES = (Policy(1), Policy(2), Policy(2, deepest_first=True))
"""Policies to choose the best from. The first has interleaving's published bubble for few parts, the second always."""


@dataclass
class _Stage:
    """State of a stage: its possible tasks, and True while it works. ``ready`` has a heap of (order, task) a kind."""

    ready: dict[str, list[tuple[tuple[int, ...], int, int]]] = field(
        default_factory=lambda: {FORWARD: [], BACKWARD: [], WEIGHTS: []}
    )
    busy: bool = False
    last: str = BACKWARD
    started: int = 0
    finished: int = 0
    most: int = 0


class _Player:
    def __init__(
        self, schedule: Schedule, stages: int, micro_batches: int, times: PartSeconds, parts: int, policy: Policy
    ) -> None:
        self._schedule, self._stages, self._micro_batches, self._parts = schedule, stages, micro_batches, parts
        self._policy = policy
        self._last = stages * parts - 1
        self._hop = times.hop
        backward = times.backward_inputs + (0.0 if schedule.split else times.backward_weights)
        self._seconds = {
            FORWARD: times.forward / parts,
            BACKWARD: backward / parts,
            WEIGHTS: times.backward_weights / parts,
        }
        self._stage = [_Stage() for _ in range(stages)]
        self._events: list[tuple[float, int, str, str, int, int]] = []
        self._count = 0
        self._tasks: list[Task] = []

    def run(self) -> PipelineRun | None:
        """Play to the end; None where stages wait for each other."""
        for micro_batch in range(self._micro_batches):
            self._post(0.0, "ready", FORWARD, micro_batch, 0)
        now = 0.0
        while self._events:
            now = self._events[0][0]
            touched = set()
            while self._events and self._events[0][0] == now:
                _, _, what, kind, micro_batch, place = heapq.heappop(self._events)
                stage = self._stage_of(place, micro_batch)
                touched.add(stage)
                if what == "ready":
                    order = self._order(kind, micro_batch, place)
                    heapq.heappush(self._stage[stage].ready[kind], (order, micro_batch, place))
                else:
                    self._done(now, kind, micro_batch, place)
            for stage in sorted(touched):
                self._start_next(now, stage)
        kinds = (FORWARD, BACKWARD, WEIGHTS) if self._schedule.split else (FORWARD, BACKWARD)
        if len(self._tasks) < len(kinds) * self._micro_batches * (self._last + 1):
            return None
        busy = self._micro_batches * self._parts * sum(self._seconds[kind] for kind in kinds)
        return PipelineRun(now, busy, max(stage.most for stage in self._stage), tuple(self._tasks))

    def _post(self, at: float, what: str, kind: str, micro_batch: int, place: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what, kind, micro_batch, place))

    def _done(self, now: float, kind: str, micro_batch: int, place: int) -> None:
        stage = self._stage[self._stage_of(place, micro_batch)]
        stage.busy = False
        if kind == FORWARD:
            following = (FORWARD, place + 1) if place < self._last else (BACKWARD, place)
            self._follow(now, *following, micro_batch, place)
        elif kind == BACKWARD:
            stage.finished += place < self._stages
            if place > 0:
                self._follow(now, BACKWARD, place - 1, micro_batch, place)
            if self._schedule.split:
                self._post(now, "ready", WEIGHTS, micro_batch, place)

    def _follow(self, now: float, kind: str, place: int, micro_batch: int, before: int) -> None:
        same = self._stage_of(place, micro_batch) == self._stage_of(before, micro_batch)
        self._post(now + (0.0 if same else self._hop), "ready", kind, micro_batch, place)

    def _start_next(self, now: float, number: int) -> None:
        stage = self._stage[number]
        if stage.busy:
            return
        for kind in self._preference(stage):
            heap = stage.ready[kind]
            if not heap or (kind == FORWARD and not self._may_forward(number, heap[0][2])):
                continue
            _, micro_batch, place = heapq.heappop(heap)
            if kind == FORWARD and place < self._stages:
                stage.started += 1
                stage.most = max(stage.most, stage.started - stage.finished)
            stage.busy = True
            stage.last = kind if kind != WEIGHTS else stage.last
            end = now + self._seconds[kind]
            self._tasks.append(Task(kind, number, micro_batch, place // self._stages, now, end))
            self._post(end, "done", kind, micro_batch, place)
            return

    def _preference(self, stage: _Stage) -> tuple[str, ...]:
        """Return the preferred order of forward and backward, which take turns if both can go on."""
        if self._schedule.all_forwards_first or stage.last == BACKWARD:
            return (FORWARD, BACKWARD, WEIGHTS)
        return (BACKWARD, FORWARD, WEIGHTS)

    def _may_forward(self, number: int, place: int) -> bool:
        """Return True if a stage may take one more micro-batch in. Micro-batches that have begun always go on."""
        if self._schedule.all_forwards_first or place >= self._stages:
            return True
        stage = self._stage[number]
        return stage.started - stage.finished < (1 + self._policy.room) * self._stages - number

    def _stage_of(self, place: int, micro_batch: int) -> int:
        turn, along = divmod(place, self._stages)
        if self._schedule.waves and turn % 2:
            along = self._stages - 1 - along
        return self._stages - 1 - along if self._schedule.both_ways and micro_batch % 2 else along

    def _order(self, kind: str, micro_batch: int, place: int) -> tuple[int, ...]:
        """Micro-batches in groups as large as the pipeline, so that parts take turns as interleaving has it."""
        part = place // self._stages
        if self._policy.deepest_first:
            return (-part if kind == FORWARD else part, micro_batch)
        return (micro_batch // self._stages, part if kind == FORWARD else -part, micro_batch)
