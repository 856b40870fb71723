"""A worker of a job: its program, which owns nothing, and its calls to the servers."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from harness.jobs.reference import Counts, require
from luwu.core.protocols import COMMITTED, PREPARED, VOID

if TYPE_CHECKING:
    from harness.jobs.server import Server
    from harness.jobs.world import World

Program = Generator[list["Call"], None, None]
"""A worker's program: it yields calls, and goes on when all of them are answered."""


class FailedError(Exception):
    """A call's error, which ends its worker."""


class Call:
    """A call on its way to a server, or its answer on the way back."""

    def __init__(self, worker: Worker, server: Server, method: str, *arguments: Any) -> None:
        self.worker, self.server, self.method, self.arguments = worker, server, method, arguments
        self.attached = False
        self.done = False
        self.result: Any = None
        self.error = ""
        self._answered = False
        worker.world.later(lambda: server.take(self))

    def answer(self, result: Any) -> None:
        """Send an answer; the first counts."""
        if not self._answered:
            self._answered = True
            self.worker.world.later(lambda: self._arrive(result, ""))

    def fail(self, error: str) -> None:
        """Send an error."""
        if not self._answered:
            self._answered = True
            self.worker.world.later(lambda: self._arrive(None, error))

    def _arrive(self, result: Any, error: str) -> None:
        self.done, self.result, self.error = True, result, error
        self.worker.wake()


class Worker:
    """A process. ``workers``: number of workers of the run, as its launcher says."""

    def __init__(self, world: World, rank: int, workers: int) -> None:
        self.world, self.rank, self.workers = world, rank, workers
        self.ended = ""
        self.counts = Counts()
        self._pushes = [0] * world.shape.servers
        self._waits_for: list[Call] = []
        self._drains = False
        self._program = self._train()
        world.later(self.wake)

    def end(self, why: str) -> None:
        """End the process, killed or by itself; every server notices later."""
        if self.ended:
            return
        self.ended = why
        for server in self.world.servers:
            self.world.later(lambda server=server: server.hear_of_end(self))

    def wake(self) -> None:
        """Go on if all that the program waits for is there."""
        while not self.ended:
            failed = [call.error for call in self._waits_for if call.error]
            if failed:
                self.end(failed[0])
            if self.ended or not all(call.done for call in self._waits_for):
                return
            if self._drains and not self._drained():
                return
            try:
                self._waits_for = next(self._program)
            except StopIteration:
                self.end("done")

    def _drained(self) -> bool:
        """Say whether all pushes have come, which a worker waits for before it begins another attempt."""
        for server in self.world.servers:
            run = server.run
            if run is None or run.failed or self not in run.people or not run.holds(self):
                self.end("a connection has ended")
                return False
            if run.pushes_under_way(self):
                return False
        return True

    def _all(self, method: str, *arguments: Any) -> list[Call]:
        return [Call(self, server, method, *arguments) for server in self.world.servers]

    def _train(self) -> Program:
        world, rules = self.world, self.world.rules
        yield self._all("join")
        shares: list[int | None] = [None]
        if world.shape.servers > 1:
            standings = self._all("standing")
            yield standings
            shares = [share.step for share in rules.share_out([call.result for call in standings], world.uuids)]
        attached = [Call(self, server, "attach", step) for server, step in zip(world.servers, shares, strict=True)]
        yield attached
        found = [call.result for call in attached]
        require(all(counts == found[0] for counts in found), f"the servers do not stand together: {found}")
        self.counts = rules.counts_at_join(found[0])
        world.check_opened(found[0])
        while self.counts.step < world.shape.steps:
            yield from self._attempt()
        yield self._all("leave")

    def _attempt(self) -> Program:
        world, rules = self.world, self.world.rules
        attempt = self.counts.attempts
        self._drains = False
        yield self._all("begin", world.shape.max_norm)
        pushes = [(server, block) for server in world.servers for block in range(world.shape.blocks)]
        for server, block in world.shuffled(pushes):
            if server.run is not None:
                server.run.post_push(self, block, attempt)
            self._pushes[server.number] += 1
        roll_back = self.rank == 0 and attempt in world.reference.given_up
        votes = [Call(self, server, "vote", roll_back, self._pushes[server.number]) for server in world.servers]
        yield votes
        ends, squares = zip(*(call.result for call in votes), strict=True)
        decision = rules.decide(ends, squares)
        prepared = [server for server, end in zip(world.servers, ends, strict=True) if end == PREPARED]
        decides = [Call(self, server, "decide", decision.commits, decision.squares) for server in prepared]
        if rules.waits_for_decides:
            yield decides
        self._drains = decision.end != COMMITTED
        yield []
        self._count(decision.end)

    def _count(self, end: int) -> None:
        step, attempts, rolled_back = self.counts
        expected = self.world.reference.end_of(attempts)
        require(end in (VOID, expected), f"attempt {attempts} has the end {end}, not {expected}")
        if end == COMMITTED:
            self.counts = Counts(step + 1, attempts + 1, rolled_back)
            self.world.check_told(self.counts)
        elif end != VOID:
            self.counts = Counts(step, attempts + 1, rolled_back + 1)
