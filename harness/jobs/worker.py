"""A worker of a job: its program, which owns nothing, and its calls to the servers."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from harness.jobs.reference import Counts, require
from luwu.core.division import require_one_job
from luwu.core.protocols import COMMITTED, VOID
from luwu.session.decision import wait_for_decision

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
        self._needs_buffers = False  # it goes on when no server holds a gradient of its
        self._ended = 0  # attempts before the one that it is in
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
            if self._drains and not self._are_free(holds=False):
                return
            if self._needs_buffers and not self._are_free(holds=True):
                return
            try:
                self._waits_for = next(self._program)
            except StopIteration:
                self.end("done")

    def hear_void(self, server: Server, attempt: int) -> None:
        """Tell the other servers that an attempt is void at one of them."""
        if self.ended:
            return
        for other in self.world.servers:
            if other is not server:
                Call(self, other, "annul", attempt)

    def _are_free(self, *, holds: bool) -> bool:
        """Say whether all pushes have come, and with ``holds`` also that no server holds a buffer any more."""
        for server in self.world.servers:
            run = server.run
            if run is None or run.failed or self not in run.people or not run.holds(self):
                self.end("a connection has ended")
                return False
            if run.pushes_under_way(self) or (holds and run.holds_gradients(self)):
                return False
        return True

    def _all(self, method: str, *arguments: Any) -> list[Call]:
        return [Call(self, server, method, *arguments) for server in self.world.servers]

    def _train(self) -> Program:
        world, rules = self.world, self.world.rules
        joins = self._all("join")
        yield joins
        runs = tuple(call.result for call in joins)
        shares: list[int | None] = [None]
        if world.shape.servers > 1:
            standings = self._all("standing", ())
            yield standings
            require_one_job([call.result for call in standings], world.uuids)
            standings = self._all("standing", runs)
            yield standings
            shares = [share.step for share in rules.share_out([call.result for call in standings], world.uuids)]
        attached = [
            Call(self, server, "attach", step, runs) for server, step in zip(world.servers, shares, strict=True)
        ]
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
        begins = self._all("begin", world.shape.max_norm)
        yield begins
        while late := rules.behind([call.result for call in begins]):
            for number in late:
                yield [Call(self, world.servers[number], "annul", begins[number].result)]
                yield [self._vote(world.servers[number], roll_back=True)]
            for number in late:
                begins[number] = Call(self, world.servers[number], "begin", world.shape.max_norm)
            yield [begins[number] for number in late]
        self._ended = begins[0].result
        pushes = [(server, block) for server in world.servers for block in range(world.shape.blocks)]
        for server, block in world.shuffled(pushes):
            if server.run is not None:
                server.run.post_push(self, block, attempt)
            self._pushes[server.number] += 1
        self._needs_buffers = world.shape.waits_for_buffers
        yield []
        self._needs_buffers = False
        roll_back = self.rank == 0 and attempt in world.reference.given_up
        votes = [self._vote(server, roll_back=roll_back) for server in world.servers]
        yield votes
        ends, squares = zip(*(call.result for call in votes), strict=True)
        decision = rules.decide(ends, squares)
        told = [world.servers[number] for number in wait_for_decision(ends)]
        if decision.annuls:
            decides = [Call(self, server, "annul", self._ended) for server in told]
        else:
            decides = [Call(self, server, "decide", decision.commits, decision.squares) for server in told]
        if rules.waits_for_decides:
            yield decides
        self._drains = decision.end != COMMITTED
        yield []
        self._count(decision.end)

    def _vote(self, server: Server, *, roll_back: bool) -> Call:
        return Call(self, server, "vote", roll_back, self._pushes[server.number])

    def _count(self, end: int) -> None:
        step, attempts, rolled_back = self.counts
        expected = self.world.reference.end_of(attempts)
        require(end in (VOID, expected), f"attempt {attempts} has the end {end}, not {expected}")
        if end == COMMITTED:
            self.counts = Counts(step + 1, attempts + 1, rolled_back)
            self.world.check_told(self.counts)
        elif end != VOID:
            self.counts = Counts(step, attempts + 1, rolled_back + 1)
