"""A history of one job: everything that is under way happens in a random order, with faults among it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from harness.jobs.reference import Counts, Reference, Shape, require
from harness.jobs.server import UUID, Server
from harness.jobs.worker import Worker
from luwu.core.division import Share, Standing, name_parts, share_out
from luwu.session.decision import Decision, behind, decide

FAULTS = 6
"""Most faults in a history. After them it must come to its end."""

EVENTS = 200
"""Events of a history of middle length, over which its faults are spread."""

SLOW, ARRIVES = 0.05, 0.02
"""Share of the events that are slow, and the chance of each event that one of these is under way after it."""

MOST_EVENTS = 20_000
"""Events after which a history counts as one that makes no progress; the longest have some two thousand."""

LEFT = "has left this server"
"""A part of the refusal of a worker whose place another one has left on purpose."""

ItemT = TypeVar("ItemT")


class Rules:
    """Rules that the processes around the machines keep. Each control breaks one of them."""

    waits_for_decides = True
    syncs_records = True
    flushes = True
    runs_end_together = True
    tells_void_attempts = True
    gathers_again = False

    def decide(self, ends: Sequence[int], squares: Sequence[float | None]) -> Decision:
        """Decide on a step for all servers."""
        return decide(ends, squares)

    def behind(self, ended: Sequence[int]) -> list[int]:
        """Return the servers whose attempt a worker that begins must make void first."""
        return behind(ended)

    def share_out(self, standings: Sequence[Standing], urls: Sequence[str]) -> list[Share]:
        """Choose the step at which the servers open their stores."""
        return share_out(standings, urls)

    def counts_at_join(self, counts: Counts) -> Counts:
        """Return the counts that a worker begins with: the store's."""
        return counts

    def place_is_free(self, machine: Any, rank: int) -> bool:
        """Say whether a worker may take a place: nothing of the one before is left."""
        return bool(machine.may_join(rank))

    def drop_pushes(self, pushes: deque[tuple[int, int]]) -> None:
        """Drop what is under way from a lost worker, before its loss is told to the machine."""
        pushes.clear()

    def lose(self, machine: Any, rank: int) -> list[tuple[Any, ...]]:
        """Tell the machine of a lost worker."""
        return list(machine.lose(rank))


class World:
    """A history. All of it follows from its seed."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.dice = random.Random(seed)
        self.rules = rules or Rules()
        self.shape = Shape.draw(self.dice)
        self.reference = Reference(self.dice.getrandbits(32), self.shape)
        self.events = 0
        self.faults: list[str] = []
        self._fault_times = sorted(self.dice.randrange(EVENTS) for _ in range(self.dice.randint(1, FAULTS)))
        self._under_way: list[Callable[[], None]] = []
        self._slow: list[Callable[[], None]] = []  # events that others overtake
        self._told = Counts()  # of the last step that a worker was told as committed
        self._server_died = False
        self.uuids = name_parts(UUID, self.shape.servers)
        self.servers = [Server(self, number) for number in range(self.shape.servers)]
        self.workers: list[Worker] = []
        self._start_all()

    def later(self, event: Callable[[], None]) -> None:
        """Let something happen, after any number of other events; now and then after many."""
        (self._slow if self.dice.random() < SLOW else self._under_way).append(event)

    def shuffled(self, items: Sequence[ItemT]) -> list[ItemT]:
        """Return items in a random order."""
        return self.dice.sample(items, len(items))

    def run(self) -> None:
        """Play the history; raises ViolationError where a promise is broken."""
        while not self._is_over():
            self.events += 1
            require(self.events < MOST_EVENTS, "the job makes no progress")
            if self._fault_times and self.events > self._fault_times[0]:
                del self._fault_times[0]
                self._fault()
            self._happen()
            self._look_after_processes()
        for server in self.servers:
            expected = self.reference.counts[-1], self.reference.values[-1]
            require(tuple(server.disk.current) == expected, f"a store ends with {server.disk.current}")

    def _is_over(self) -> bool:
        """Say whether all workers are done. The user starts them again if the last step was not durable."""
        if not all(worker.ended == "done" for worker in self.workers):
            return False
        for server in self.servers:
            server.close()
        lost = any(server.disk.current.counts.step < self.shape.steps for server in self.servers)
        if not lost or not self.shape.answers_early:
            return True
        self._start_all()
        return False

    def check_told(self, counts: Counts) -> None:
        """Check a step that a worker is told as committed, and remember it."""
        require(counts == self.reference.counts[counts.step], f"a worker counts {counts}")
        self._told = max(self._told, counts)

    def check_opened(self, counts: Counts) -> None:
        """Check the counts that a worker begins with.

        Where a step is answered before its record is durable, steps since the last commit point may be lost if a server
        died. Of several servers with commit points they may be lost with a worker, too: one server that knows the
        decision on the last step and another that does not put different steps on their disks.
        """
        require(self.reference.allows(counts), f"a worker begins with {counts}")
        apart = self.shape.servers > 1 and self.shape.commit_every != 1
        sure = self.shape.sure(self._told.step) if self._server_died or apart else self._told.step
        require(counts.step >= sure, f"step {self._told.step} was told, and the job goes on at {counts.step}")

    # ---- what happens

    def _happen(self) -> None:
        if self._slow and (not self._under_way or self.dice.random() < ARRIVES):
            self._under_way.append(self._slow.pop(self.dice.randrange(len(self._slow))))
        working = [run for server in self.servers if (run := server.run) is not None and run.works]
        number = self.dice.randrange(max(1, len(self._under_way) + len(working)))
        if number < len(self._under_way):
            events = self._under_way
            events[number], events[-1] = events[-1], events[number]
            events.pop()()
        elif working:
            run = working[number - len(self._under_way)]
            run.work(self.dice.randrange(len(run.works)))
        else:  # nothing is under way: time passes
            over = [server for server in self.servers if server.run is not None and server.run.over]
            for server in over or self.servers:  # a run that is over ends first
                server.let_time_pass()

    def _fault(self) -> None:
        kind = self.dice.choice(("kill", "kill", "fence", "server", "all"))
        living = [worker for worker in self.workers if not worker.ended]
        if kind in ("server", "all"):
            chosen = self.servers if kind == "all" else [self.dice.choice(self.servers)]
            dying = [server for server in chosen if server.alive]
            for server in dying:
                server.die()
                self.later(lambda server=server: setattr(server, "alive", True))
            self._server_died = self._server_died or bool(dying)
            self.faults += [f"{self.events} {kind}"] * bool(dying)
        elif living:
            worker = self.dice.choice(living)
            run = self.dice.choice(self.servers).run
            if kind == "kill":
                worker.end("killed")
            elif run is not None and worker in run.people and run.holds(worker):
                run.lose(worker)
            else:
                return
            self.faults.append(f"{self.events} {kind}")

    # ---- who starts what

    def _look_after_processes(self) -> None:
        """Start workers again, as a launcher does: one at the place of a lost one, or all where the run has ended."""
        ended = [worker for worker in self.workers if worker.ended and worker.ended != "done"]
        if not ended:
            return
        run = self.servers[0].run
        if any(LEFT in worker.ended for worker in ended):
            # A worker was counted as lost at one server while it left. Restarts are used up, and then all end.
            for worker in self.workers:
                worker.end("ended by its launcher")
        if self.shape.lasting and run is not None and not run.over:
            for worker in ended:
                if worker not in run.people:
                    self.workers[self.workers.index(worker)] = Worker(self, worker.rank, worker.workers)
        elif all(worker.ended for worker in self.workers):
            self._start_all()

    def _start_all(self) -> None:
        count = self.dice.randint(1, self.shape.workers)
        self.workers = [Worker(self, rank, count) for rank in range(count)]


def play(seed: int, rules: Rules | None = None) -> World:
    """Play a history to its end, and return it; raises ViolationError where a promise is broken."""
    world = World(seed, rules)
    world.run()
    return world
