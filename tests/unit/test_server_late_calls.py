"""Calls of a worker that is lost while they are under way: they change nothing for the one that came for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from tests.integration.fabric_worker import small_manifest
from tests.unit.network_serving import QUICK

from luwu.core.division import Share
from luwu.errors import WorkerLostError
from luwu.server.run import Run, Terms, Worker
from luwu.server.runs import Runs
from luwu.server.topology import PacketOrigin, star

PLACES = [PacketOrigin("10.0.0.1", port, 1408) for port in range(1, 5)]


class Core:
    """A native server that notes what it is asked to do, and lets `wait_for_place` and `begin` be held."""

    initialised = True
    port = 7

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.waiting, self.free = threading.Event(), threading.Event()
        self.begins, self.begun = threading.Event(), threading.Event()
        self.free.set()
        self.begun.set()

    def lose_worker(self, rank: int) -> None:
        self.asked.append(("lose", rank))

    def allow_worker(self, rank: int, token: bytes) -> None:
        self.asked.append(("allow", rank))

    def wait_for_place(self, rank: int, at_most_seconds: float) -> bool:
        self.waiting.set()
        return self.free.wait(at_most_seconds)

    def begin(self, rank: int, *settings: object) -> tuple[int, bool, int]:
        self.begins.set()
        assert self.begun.wait(30)
        self.asked.append(("begin", rank))
        return 0, False, 3

    def commit(self, rank: int, roll_back: bool, pushes: int) -> None:
        self.asked.append(("commit", rank))

    def decide(self, rank: int, ended: int, commits: bool, squares: float | None) -> None:
        self.asked.append(("decide", rank))

    def annul(self, rank: int, ended: int) -> None:
        self.asked.append(("annul", rank))

    def stats(self) -> dict[str, int | None]:
        return {"step": 3, "attempts": 3, "rolled_back": 0, "loss_scale": None, "good_steps": 0}

    def failure(self) -> None: ...
    def finish(self, at_most_seconds: float) -> bool:
        return True

    def close(self) -> None: ...


@contextmanager
def runs_of_two(core: Core, plan: Callable) -> Iterator[tuple[Runs, list[Worker]]]:
    """Serve a run of two workers that have attached."""
    runs = Runs(2, 0, lambda *about: core, "", plan, QUICK, worker_return_seconds=60.0)
    try:
        workers = [watching(runs, rank) for rank in range(2)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda worker: attach(runs, worker, PLACES[worker.rank]), workers))
        core.asked.clear()
        yield runs, workers
    finally:
        runs.begin_close()
        runs.finish_close()


def watching(runs: Runs, rank: int) -> Worker:
    worker = runs.join_worker(rank, 2, "here")
    runs.watches(worker)
    return worker


def attach(runs: Runs, worker: Worker, place: PacketOrigin) -> None:
    runs.attach(worker, small_manifest(), Terms(Share()), place)


def check_refused(lost: Worker) -> None:
    with pytest.raises(WorkerLostError, match="worker 1 was lost while it waited for an answer"):
        lost.run.begin(lost, [])
    with pytest.raises(WorkerLostError, match="worker 1 was lost while it waited for an answer"):
        lost.run.commit(lost, False, 3, lambda: True, before=lambda: pytest.fail("it is in the run no more"))
    for commits in (True, False, None):
        with pytest.raises(WorkerLostError, match="worker 1 was lost while it waited for an answer"):
            lost.run.decide(lost, 3, commits, None, lambda: True)


def test_a_late_step_of_a_lost_worker_reaches_nothing() -> None:
    core = Core()
    with runs_of_two(core, star) as (runs, (_, lost)):
        runs.leave(lost, "its own reason")
        assert core.asked == [("lose", 1)]
        check_refused(lost)
        following = watching(runs, 1)
        check_refused(lost)
        attach(runs, following, PLACES[2])
        check_refused(lost)
        assert core.asked == [("lose", 1), ("allow", 1)]
        assert runs.run.error() is None
        assert following.run.begin(following, []) == (0, False, 3)
        assert core.asked[-1] == ("begin", 1)


def test_a_worker_is_lost_after_a_call_that_is_under_way() -> None:
    core = Core()
    with runs_of_two(core, star) as (runs, (_, lost)), ThreadPoolExecutor(2) as pool:
        core.begun.clear()
        beginning = pool.submit(lost.run.begin, lost, [])
        assert core.begins.wait(30)
        losing = pool.submit(runs.leave, lost, "its own reason")
        assert not losing.done()
        core.begun.set()
        losing.result(30)
        beginning.result(30)
        assert core.asked == [("begin", 1), ("lose", 1)]


def test_a_worker_that_is_lost_while_it_waits_does_not_take_the_place_of_the_next() -> None:
    core, planned = Core(), list[tuple[PacketOrigin, ...]]()

    def plan(ready):
        planned.append(ready.places)
        return star(ready)

    with runs_of_two(core, plan) as (runs, (_, lost)), ThreadPoolExecutor(1) as pool:
        runs.leave(lost, "its own reason")
        core.free.clear()
        second = watching(runs, 1)
        attaching = pool.submit(attach, runs, second, PLACES[2])
        assert core.waiting.wait(30)
        runs.leave(second, "killed while it waits")
        third = watching(runs, 1)
        with pytest.raises(WorkerLostError, match="worker 1 was lost while it waited for an answer"):
            attaching.result(30)
        core.free.set()
        assert 1 in runs.run.vacancies
        attach(runs, third, PLACES[3])
        assert core.asked == [("lose", 1), ("lose", 1), ("allow", 1)]
        assert planned == [tuple(PLACES[:2]), (PLACES[0], PLACES[3])]
        assert runs.run.error() is None and runs.run.holds(1, third.tenure)


def test_a_worker_that_is_lost_before_the_tree_is_planned_leaves_where_it_was() -> None:
    """Another has joined at its place when the tree is planned, and has not said where it is."""
    planned = []
    run = Run(2, lambda *about: Core(), QUICK)
    run._open_for(small_manifest())
    workers = [run.add(rank, 2, "") for rank in range(2)]
    for worker in workers:
        run.note_place(worker, PLACES[worker.rank])
    run.people[1] = Worker(name="worker 1", peer="", rank=1, run=run, tenure=2)

    def plan(ready):
        planned.append(ready.places)
        return {}

    run.send_topology([], "", plan)
    assert planned == [tuple(PLACES[:2])]
