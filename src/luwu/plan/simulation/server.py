"""A server's six steps in simulated time, which carry out what native code decides, as the pipeline does.

The step machine decides what is begun, updated, prepared and committed; the schedule decides what is read, read ahead
and evicted. An action has the time of its transfers and updates; a commit record and an answer take none here.

In step order each step has a queue of its own, and pieces of a block go from one to the next. In layer order (what
arXiv 2409.00918 compares with) a group of threads takes a block through steps 4 to 6, and has its share of them only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

import simpy

from luwu.core.native import StepMachine
from luwu.plan.clusters import Server
from luwu.plan.constants import HOST_MEMORY_SHARE, UPDATE_FLOP, UPDATE_MEMORY_BYTES
from luwu.plan.simulation.lines import Disks, Line, Record
from luwu.plan.simulation.scenario import Order
from luwu.server.forecast import WindowSchedule

Events = Generator[simpy.Event, Any, Any]
Action: TypeAlias = (
    StepMachine.BeginPass
    | StepMachine.Update
    | StepMachine.FinishOwed
    | StepMachine.WriteRecord
    | StepMachine.Answer
    | StepMachine.EndStep
)

PIECES = 16
"""Parts of a block that follow each other through steps 4 to 6, as chunks do."""

IN_FLIGHT = 4
"""Transfers that steps 4 and 6 have going on at a time."""

GROUPS = 6
"""Layers in flight in layer order (arXiv 2409.00918)."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of the blocks as they travel: of parameters down, and of gradients up, for each block of this server."""

    down: tuple[float, ...]
    up: tuple[float, ...]
    elements: tuple[int, ...]


class ServerSteps:
    """The steps of one server in a simulated run."""

    def __init__(
        self,
        environment: simpy.Environment,
        name: str,
        hardware: Server,
        machine: StepMachine,
        schedule: WindowSchedule,
        sizes: Sizes,
        rate: float,
        order: Order,
        record: Record,
    ) -> None:
        self._environment, self._name, self._sizes, self._record = environment, name, sizes, record
        self._machine, self._schedule = machine, schedule
        self._answered = environment.event()
        self._down, self._up = Line(environment, rate), Line(environment, rate)
        self._disks = Disks(environment, hardware.disk, hardware.disks)
        memory = hardware.memory_rate * HOST_MEMORY_SHARE.value / UPDATE_MEMORY_BYTES.value
        self._update_rate = min(memory, hardware.flops / UPDATE_FLOP.value)  # elements a second
        self._arrived: dict[int, simpy.Event] = {}  # blocks that somebody waits for
        self._waiting: list[int] = []
        self._blocks: simpy.Store = simpy.Store(environment)
        self._states: simpy.Store = simpy.Store(environment)
        self._updates: simpy.Store = simpy.Store(environment)
        self._writes: simpy.Store = simpy.Store(environment)
        self._pieces_written = [0] * len(sizes.elements)
        if order == "step":
            environment.process(self._cut_up())
            environment.process(self._update())
            for _ in range(IN_FLIGHT):
                environment.process(self._read_states())
                environment.process(self._write())
        else:
            for group in range(GROUPS):
                environment.process(self._layer_group(group))

    @property
    def answered(self) -> simpy.Event:
        """The next answer to the workers' votes: its value is True for a step that is prepared, False at its end."""
        return self._answered

    def begin(self) -> None:
        """Let every worker begin a step."""
        self._carry_out(self._machine.begin_all())

    def vote(self, pushes: int) -> None:
        """Let every worker vote for a commit; the votes count after ``pushes`` sums in all steps."""
        self._carry_out(self._machine.vote_all(pushes))

    def commit(self) -> None:
        """Say the last word on a step that every server has prepared."""
        self._carry_out(self._machine.decide(True))

    def hand_out(self, block: int) -> Events:
        """Do steps 1 and 2 of a pull: read a block unless it is there, and send it once to all; ends when sent."""
        self._carry_out(self._machine.pull(block))
        self._schedule.pulled(block)
        if not self._schedule.resident(block):
            arrived = self._arrived.setdefault(block, self._environment.event())
            if self._schedule.absent(block) and block not in self._waiting:
                self._waiting.append(block)
                self._retry()
            self._read_ahead()
            yield arrived
        self._schedule.hold(block)
        self._read_ahead()
        start, end = self._down.book(self._sizes.down[block])
        self._note("2 hand out", block, start, end)
        yield self._environment.timeout(end - self._environment.now)

    def release(self, block: int) -> None:
        """Give a block back that nobody uses any more."""
        self._schedule.unhold(block)
        self._retry()
        self._read_ahead()

    def collect(self, block: int) -> Events:
        """Do step 3: the sum of the workers' pushes comes in; what follows is the machine's decision."""
        start, end = self._up.book(self._sizes.up[block])
        self._note("3 collect", block, start, end)
        yield self._environment.timeout(end - self._environment.now)
        self._carry_out(self._machine.push(block))

    def _carry_out(self, actions: list[Action]) -> None:
        """Carry actions out, one after the other; what an action causes comes after those before it."""
        waiting = deque(actions)
        while waiting:
            match waiting.popleft():
                case StepMachine.BeginPass():
                    self._schedule.begin_step()
                    self._read_ahead()
                case StepMachine.Update(block=block):
                    self._blocks.put(block)
                case StepMachine.WriteRecord():
                    waiting.extend(self._machine.recorded())
                case StepMachine.Answer():
                    self._answer(prepared=True)
                case StepMachine.EndStep():
                    self._schedule.end_step()
                    self._answer(prepared=False)
                case StepMachine.FinishOwed():
                    pass  # without clipping nothing is owed

    def _answer(self, prepared: bool) -> None:
        self._answered.succeed(prepared)
        self._answered = self._environment.event()

    def _retry(self) -> None:
        while self._waiting:
            block = self._waiting[0]
            if self._schedule.absent(block):
                if not self._schedule.place(block):
                    return
                self._environment.process(self._read(block))
            self._waiting.pop(0)

    def _read_ahead(self) -> None:
        while not self._waiting:
            block = self._schedule.place_ahead()
            if block is None:
                return
            self._environment.process(self._read(block))

    def _read(self, block: int) -> Events:
        start, end = self._disks.read(self._schedule.parameter_bytes(block))
        self._note("1 read", block, start, end)
        yield self._environment.timeout(end - self._environment.now)
        self._schedule.read_done(block)
        if block in self._arrived:
            self._arrived.pop(block).succeed()
        self._retry()

    def _cut_up(self) -> Events:
        while True:
            block = yield self._blocks.get()
            for _ in range(PIECES):
                self._states.put(block)

    def _read_states(self) -> Events:
        while True:
            block = yield self._states.get()
            yield from self._spend("4 read states", block, self._disks.read(self._state_piece(block)))
            self._updates.put(block)

    def _update(self) -> Events:
        while True:
            block = yield self._updates.get()
            yield from self._spend("5 update", block, self._work(block, self._update_rate))
            self._writes.put(block)

    def _write(self) -> Events:
        while True:
            block = yield self._writes.get()
            yield from self._spend("6 write", block, self._disks.write(self._record_piece(block)))
            self._pieces_written[block] += 1
            if self._pieces_written[block] == PIECES:
                self._pieces_written[block] = 0
                self._carry_out(self._machine.written(block))

    def _layer_group(self, group: int) -> Events:
        """All of a block's steps by the same threads, one after the other."""
        suffix = f" (group {group + 1})"
        while True:
            block = yield self._blocks.get()
            states, records = PIECES * self._state_piece(block), PIECES * self._record_piece(block)
            yield from self._spend("4 read states" + suffix, block, self._disks.read(states))
            start, end = self._work(block, self._update_rate / GROUPS)
            yield from self._spend("5 update" + suffix, block, (start, start + PIECES * (end - start)))
            yield from self._spend("6 write" + suffix, block, self._disks.write(records))
            self._carry_out(self._machine.written(block))

    def _state_piece(self, block: int) -> float:
        return float(self._schedule.rotating_state_bytes(block)) / PIECES

    def _record_piece(self, block: int) -> float:
        return float(self._schedule.record_bytes(block)) / PIECES

    def _work(self, block: int, rate: float) -> tuple[float, float]:
        now = self._environment.now
        return now, now + self._sizes.elements[block] / PIECES / rate

    def _spend(self, track: str, block: int, booked: tuple[float, float]) -> Events:
        start, end = booked
        self._note(track, block, start, end)
        yield self._environment.timeout(end - self._environment.now)

    def _note(self, track: str, block: int, start: float, end: float) -> None:
        self._record.add(f"{self._name}: {track}", f"block {block}", start, end)
