"""All workers of a run, played through together: a time for each worker, an event for all of them.

The order of pulls, what is asked for ahead and what is kept at the turn is that of the worker's own `Pass`. A block
goes down when every worker has room for it (the least credit), so its time is that of the slowest; what happens on a
worker between two blocks needs no event of its own, and 100,000 workers are an array.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from luwu.models.shapes import BlockNumbers
from luwu.plan.simulation.lines import Record
from luwu.plan.simulation.server import ServerSteps, Sizes
from luwu.plan.simulation.tree import Links, Times, Uplinks
from luwu.worker.passes import Pass

ROOT = 0
GRADIENT_BUFFERS = 2
"""Buffers for gradients of the largest block on a worker: a backward waits for the push before the last."""

Events = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True)
class BlockSeconds:
    """A worker's time for one layer in each phase, and for the head between them."""

    forward: float
    backward: float
    head: float


class Workers:
    """The training loop of every worker, step after step."""

    def __init__(
        self,
        environment: simpy.Environment,
        servers: list[ServerSteps],
        links: Links,
        whole: Sizes,
        blocks: BlockNumbers,
        seconds: BlockSeconds,
        slowness: Times,
        random: np.random.Generator,
        record: Record,
    ) -> None:
        self._environment, self._servers, self._links, self._whole = environment, servers, links, whole
        self._blocks = blocks
        self._seconds, self._slowness, self._random, self._record = seconds, slowness, random, record
        self._uplinks = Uplinks(links, random)
        self._pass = Pass()
        self._free: Times = np.zeros(links.workers)  # when a worker's processor is
        self._asked: Times = np.zeros(links.workers)  # when it had room for the next block
        self._asked_for: int | None = None
        self._pushed: list[float] = []
        self._pushes = 0  # in all steps
        self._slowest = int(np.argmax(slowness))
        self.ends: list[float] = []

    def run(self, steps: int) -> Events:
        """Make ``steps`` steps; ``ends`` has the time of each commit."""
        for _ in range(steps):
            self._pass.start()
            for server in self._servers:
                server.begin()
            self._free[:] = self._asked[:] = self._environment.now
            self._pushed = []
            yield from self._forward()
            yield from self._backward()
            yield from self._end()
            yield self._environment.timeout(self._links.latency_seconds)
            self._pass.finish()
            self.ends.append(self._environment.now)

    def _forward(self) -> Events:
        yield from self._acquire(ROOT)
        head = self._blocks.head
        for table in self._blocks.tables:
            if table < self._blocks.layers.start:
                yield from self._acquire(table)
                self._release(table)
        for layer in self._blocks.layers:
            yield from self._acquire(layer)
            self._compute("forward", layer, self._seconds.forward)
            if self._pass.upcoming() != layer:  # else the turn, where the block is kept
                self._release(layer)
        if head != ROOT:
            yield from self._acquire(head)
        self._compute("head", head, self._seconds.head)
        if head != ROOT:
            self._release(head)
        if head >= self._blocks.layers.stop:
            self._push(head)

    def _backward(self) -> Events:
        kept = self._pass.upcoming() if self._blocks.head == ROOT else None
        for layer in reversed(self._blocks.layers):
            if layer == kept:
                following = self._pass.note(layer)
                self._ask_ahead(following, self._free)
                kept = None
            else:
                yield from self._acquire(layer)
            if len(self._pushed) >= GRADIENT_BUFFERS:
                self._free = np.maximum(self._free, self._pushed[-GRADIENT_BUFFERS])
            self._compute("backward", layer, self._seconds.backward)
            self._release(layer)
            self._push(layer)
        for table in reversed(self._blocks.tables):
            if table < self._blocks.layers.start:
                self._push(table)
        self._release(ROOT)
        self._push(ROOT)

    def _end(self) -> Events:
        """Vote, and wait for the end of the step. Several servers prepare it first; the decision takes no time here."""
        self._environment.process(self._vote(float(self._free.max()) + self._links.latency_seconds))
        answers = [server.answered for server in self._servers]
        yield self._environment.all_of(answers)
        for server, answer in zip(self._servers, answers, strict=True):
            if answer.value:
                server.commit()

    def _vote(self, at: float) -> Events:
        yield from self._wait_until(at)
        for server in self._servers:
            server.vote(self._pushes)

    def _acquire(self, block: int) -> Events:
        """Pull a block: it is sent when every worker has asked for it, and a worker uses it when it is free."""
        asked = self._asked if self._asked_for == block else self._free
        yield from self._wait_until(float(asked.max()) + self._links.latency_seconds)
        begun = self._environment.now
        sent = [self._environment.process(server.hand_out(block)) for server in self._servers]
        yield self._environment.all_of(sent)
        # The workers' links carry it while the server sends it; where they are slower, they are what takes the time.
        arrived = max(self._environment.now, begun + self._whole.down[block] / self._links.rate)
        arrival = (
            arrived + self._links.latency_seconds + self._links.resent_seconds(self._whole.down[block], self._random)
        )
        self._free = np.maximum(self._free, arrival)
        self._ask_ahead(self._pass.note(block), self._free)

    def _ask_ahead(self, block: int | None, since: Times) -> None:
        self._asked_for = block
        self._asked = since.copy()

    def _compute(self, phase: str, block: int, seconds: float) -> None:
        begin = self._free
        self._free = begin + seconds * self._slowness
        slowest = self._slowest
        self._record.add("slowest worker", f"{phase} {block}", float(begin[slowest]), float(self._free[slowest]))

    def _release(self, block: int) -> None:
        at = float(self._free.max()) + self._links.latency_seconds
        self._environment.process(self._later(at, block))

    def _later(self, at: float, block: int) -> Events:
        yield from self._wait_until(at)
        for server in self._servers:
            server.release(block)

    def _push(self, block: int) -> None:
        complete = self._uplinks.push(self._free, self._whole.up[block])
        self._pushed.append(complete)
        self._pushes += 1
        self._environment.process(self._collect(complete, block))

    def _collect(self, complete: float, block: int) -> Events:
        """The server takes the sum in while it comes, so it is there when it is complete, or its own link is done."""
        rate_seconds = self._whole.up[block] / self._links.rate
        yield from self._wait_until(complete - rate_seconds)
        taken = [self._environment.process(server.collect(block)) for server in self._servers]
        yield self._environment.all_of(taken)

    def _wait_until(self, at: float) -> Events:
        if at > self._environment.now:
            yield self._environment.timeout(at - self._environment.now)
