"""A server of a job: the places of its runs' workers, their calls, and what each of them is answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.jobs.disk import Disk
from harness.jobs.executor import Executor
from harness.jobs.reference import require
from luwu.core.division import Standing
from luwu.server.admission import Admission

if TYPE_CHECKING:
    from harness.jobs.worker import Call, Worker
    from harness.jobs.world import World

UUID = "0" * 32


class Server:
    """A process with a disk. It serves one run after another."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.disk = Disk()
        self.alive = True
        self.run: Run | None = None
        self._joins: list[Call] = []  # that wait for the end of a run

    def die(self) -> None:
        """Lose the process, and what its disk has not synced."""
        self.alive = False
        if self.run is not None:
            self.run.failed = True
            self.run.break_off()
            self._end_run()
        self.disk.cut(self.world.dice)

    def take(self, call: Call) -> None:
        """Take a call of a worker."""
        if not self.alive:
            call.fail("the server is lost")
        elif call.method == "join":
            self._join(call)
        elif self.run is None or call.worker not in self.run.people:
            call.fail("the session has ended")
        else:
            run = self.run
            self.world.later(lambda: run.take(call))  # its worker may be lost, and replaced, before it is handled

    def _join(self, call: Call) -> None:
        if self.run is not None and self.run.over:
            self._joins.append(call)  # until the ones before have gone
            return
        if self.run is None:
            self.run = Run(self)
        self.run.join(call)
        if call.worker.ended:  # before its join came
            self.world.later(lambda: self.hear_of_end(call.worker))

    def let_time_pass(self) -> None:
        """Let the server's timeouts be over."""
        if self.run is None:
            return
        if self.run.over:  # workers of a run that has ended do not go
            self.run.break_off()
            self.close()
        else:
            self.run.stop_gathering()

    def hear_of_end(self, worker: Worker) -> None:
        """Note that a worker's connection has ended."""
        if self.run is not None and worker in self.run.people:
            self.run.end(worker)
            if not self.run.people:
                self.close()

    def close(self) -> None:
        """Close the run, if there is one."""
        if self.run is not None:
            self.run.close()
            self._end_run()

    def _end_run(self) -> None:
        self.run = None
        waiting, self._joins = self._joins, []
        for call in waiting:
            self.world.later(lambda call=call: self.take(call))


class Run:
    """Workers over one opening of the store."""

    def __init__(self, server: Server) -> None:
        self.server, self.world = server, server.world
        shape = self.world.shape
        self.admission = Admission(shape.workers, 1)
        self.people: dict[Worker, None] = {}  # in the order in which they came
        self._places: dict[Worker, tuple[int, int]] = {}  # rank and tenure, also of workers that have gone
        self.executor: Executor | None = None  # once a worker has attached
        self.opened_at: int | None = None
        self.failed = False
        self.number = self.world.dice.getrandbits(63)
        self._runs: tuple[int, ...] = ()  # numbers of the runs of all servers
        self._attaching: dict[int, Call] = {}
        self._gathered = False  # all workers were there once
        self._votes: dict[int, Call] = {}
        self._decides: list[Call] = []
        self._annuls: list[Call] = []
        self._undecided = False
        self._last_end: tuple[int, float | None] = (0, None)
        self._pushes: dict[Worker, deque[tuple[int, int]]] = {}

    @property
    def over(self) -> bool:
        """True where nobody may join any more."""
        return self.failed or self.admission.deserted

    # ---- what workers ask

    def join(self, call: Call) -> None:
        """Take a worker in."""
        refusal = self.admission.join(call.worker.rank, call.worker.workers)
        if refusal:
            call.fail(refusal)
            return
        self.people[call.worker] = None
        self._places[call.worker] = call.worker.rank, self.admission.tenure(call.worker.rank)
        self._pushes[call.worker] = deque()
        call.answer(self.number)

    def holds(self, worker: Worker) -> bool:
        """Return True while a worker is in the run at its place."""
        rank, tenure = self._places[worker]
        return self.admission.holds(rank, tenure)

    def take(self, call: Call) -> None:
        """Take a call of a worker that has joined."""
        if self.failed or not self.holds(call.worker):
            call.fail("the run has failed" if self.failed else "the worker is lost")
            return
        rank, _ = self._places[call.worker]
        if call.method == "standing":
            self._standing(call, *call.arguments)
        elif call.method == "attach":
            self._attach(call, rank, *call.arguments)
        elif self.executor is not None:
            getattr(self, f"_{call.method}")(self.executor, call, rank, *call.arguments)

    def _standing(self, call: Call, runs: tuple[int, ...]) -> None:
        """Describe the store to a worker, which names the runs of all servers that it has joined."""
        if runs and self._runs and self._runs != runs and self.world.rules.runs_end_together:
            self.fail("another server has begun a new run")
            call.fail("the run has failed")
            return
        steps = self.server.disk.steps if self.opened_at is None else (self.opened_at,)
        call.answer(Standing(self.world.uuids[self.server.number], steps))

    def _attach(self, call: Call, rank: int, step: int | None, runs: tuple[int, ...]) -> None:
        self._runs = self._runs or runs
        if self.executor is None:
            disk = self.server.disk
            disk.open_at(disk.current.counts.step if step is None else step)
            self.opened_at = disk.current.counts.step
            workers = self.admission.workers
            self.executor = Executor(
                self.world,
                self.server.number,
                disk,
                workers,
                self._answer_votes,
                self._answer_all,
                self.fail,
                self.wake_all,
            )
        self._attaching[rank] = call
        self.let_in()

    def let_in(self) -> None:
        """Let workers attach whose places are free, and go on when all have."""
        if self.executor is None:
            return
        machine = self.executor.machine
        for rank, call in self._attaching.items():
            if not call.attached and self.world.rules.place_is_free(machine, rank):
                tenure = self.executor.attached[rank] = self._places[call.worker][1]
                call.attached = self.admission.attach(rank, tenure)
                self.executor.act(machine.join(rank))
        again = self._gathered and not self.world.rules.gathers_again  # they wait for no other worker
        self._gathered = self._gathered or not self.admission.missing
        if again or not self.admission.missing:
            for rank, call in list(self._attaching.items()):
                if call.attached:
                    call.answer(self.executor.counts)
                    del self._attaching[rank]

    def stop_gathering(self) -> None:
        """Fail the run if workers wait for others that do not come in time. Those that have come must not wait so."""
        here = [worker for worker in self.people if not worker.ended and self.holds(worker)]
        require(not self._attaching or len(here) < self.admission.workers, "all workers are there, and wait for ever")
        if self._attaching:
            self.fail("a worker did not come in time")

    def _begin(self, executor: Executor, call: Call, rank: int, max_norm: float | None) -> None:
        ended = executor.machine.ended
        executor.act(executor.machine.begin(rank, max_norm))
        if not self.failed:
            call.answer(ended)

    def post_push(self, worker: Worker, block: int, attempt: int) -> None:
        """Send a gradient; those of a worker come in their order."""
        if worker not in self.people or not self.holds(worker):  # its connection has ended
            return
        self._pushes[worker].append((block, attempt))
        self.world.later(lambda: self._next_push(worker))

    def pushes_under_way(self, worker: Worker) -> bool:
        """Return True while gradients of a worker are under way."""
        return bool(self._pushes[worker])

    def holds_gradients(self, worker: Worker) -> bool:
        """Return True while the server keeps a worker's gradients in the worker's buffers."""
        rank, _ = self._places[worker]
        return self.executor is not None and self.executor.holds_gradients(rank)

    def wake_all(self) -> None:
        """Let workers go on that wait for their buffers."""
        for worker in self.people:
            self.world.later(worker.wake)

    def _next_push(self, worker: Worker) -> None:
        if self.executor is None or self.failed or not self._pushes[worker]:
            return
        block, attempt = self._pushes[worker].popleft()
        rank, tenure = self._places[worker]
        self.executor.push(rank, tenure, block, attempt)
        worker.wake()

    def _vote(self, executor: Executor, call: Call, rank: int, roll_back: bool, pushes: int) -> None:
        self._votes[rank] = call
        executor.act(executor.machine.vote(rank, roll_back, pushes))

    def _decide(self, executor: Executor, call: Call, rank: int, commits: bool, squares: float | None) -> None:
        if not self._undecided:
            call.answer(self._last_end)
            return
        self._decides.append(call)
        executor.act(executor.machine.decide(commits, -1.0 if squares is None else squares))

    def _annul(self, executor: Executor, call: Call, rank: int, attempt: int) -> None:
        if executor.machine.waits(rank):
            self._annuls.append(call)
        else:
            call.answer(None)
        executor.act(executor.machine.annul(attempt))

    def _leave(self, executor: Executor, call: Call, rank: int) -> None:
        self.admission.go(rank)
        executor.act(executor.machine.leave(rank))
        call.answer(None)

    def _answer_votes(self, end: int, squares: float | None) -> None:
        self._undecided = True
        self._last_end = end, squares
        for call in self._votes.values():
            call.answer(self._last_end)
        self._votes.clear()

    def _answer_all(self, end: int, squares: float | None) -> None:
        self._answer_votes(end, squares)
        self._undecided = False
        for call in (*self._decides, *self._annuls):
            call.answer(self._last_end)
        self._decides.clear()
        self._annuls.clear()

    # ---- what ends

    def lose(self, worker: Worker) -> None:
        """Count a worker as lost, whether its process lives or not."""
        if not self.holds(worker):
            return
        rank, _ = self._places[worker]
        if self.executor is None or self.failed or not self.world.shape.lasting:
            self.fail("a worker is lost")
            self.admission.go(rank)
            return
        self.world.rules.drop_pushes(self._pushes[worker])
        for calls in (self._votes, self._attaching):
            if rank in calls and calls[rank].worker is worker:
                calls.pop(rank).fail("the worker is lost")
        machine = self.executor.machine
        ended = machine.ended
        self.executor.act(self.world.rules.lose(machine, rank))
        if machine.ended == ended and machine.is_void and self.world.rules.tells_void_attempts:
            for other in self.people:
                self.world.later(lambda other=other: other.hear_void(self.server, ended))
        self.admission.lose(rank)
        self.world.later(worker.wake)
        self.let_in()

    def end(self, worker: Worker) -> None:
        """Note the end of a worker's connection; without leaving before, it is lost."""
        self.lose(worker)
        del self.people[worker]

    def fail(self, why: str) -> None:
        """End the run: every worker that waits is told."""
        if self.failed:
            return
        self.failed = True
        if self.executor is not None:
            self.executor.failed = True
            self.executor.act(self.executor.machine.fail(why))
        self.break_off()

    def break_off(self) -> None:
        """Tell every worker that waits for an answer that there will be none."""
        for call in (*self._attaching.values(), *self._votes.values(), *self._annuls, *self._decides):
            call.fail("the run has failed")
        for calls in (self._attaching, self._votes):
            calls.clear()
        self._annuls.clear()
        self._decides.clear()
        for worker in self.people:
            self.world.later(worker.wake)

    @property
    def works(self) -> list[Callable[[], None]]:
        """Return what is under way in the executor."""
        return [] if self.executor is None else self.executor.works

    def work(self, number: int) -> None:
        """End one of these works."""
        assert self.executor is not None
        self.executor.work(number)
        self.let_in()

    def close(self) -> None:
        """Close the store."""
        if self.executor is not None:
            self.executor.close()
