"""Kills of a server, a worker or a switch of a run with two workers, and of a process that embeds its server."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from kit.kills import work
from kit.kills.course import MOMENTS, OPENING, Clock, Course, Scenario
from kit.kills.processes import Life, ending, files_of, watch
from kit.kills.sites import Site, store_digests

LAST_STEPS = 2
NOTICED_SECONDS = 30.0
LOST = {"server": "ServerError", "worker": "WorkerLostError"}


def kill_embedded(scenario: Scenario, folder: Path, kills: int) -> None:
    """Kill a process that is worker and server at once."""
    clock, course = Clock(scenario.name), Course(scenario)
    lives: list[Life] = []

    def start(name: str, until: int = work.ENDLESS) -> Life:
        lives.append(
            Life(
                name,
                folder / f"{name}.log",
                partial(work.embedded, folder / name, until, f"{scenario.commit_every} steps"),
            )
        )
        return lives[-1]

    folder.mkdir()
    with ending(lives):
        for number in range(kills):
            moment = MOMENTS[number % len(MOMENTS)]
            life = start("disturbed")
            clock.wait(moment, [life])
            life.kill()
            scenario.kills += 1
            scenario.moments[moment] += 1
            clock.learn([life])
            course.take([life])
        target = course.last + LAST_STEPS
        disturbed, undisturbed = start("disturbed", target), start("undisturbed", target)
        ends = []
        for name, life in (("disturbed", disturbed), ("undisturbed", undisturbed)):
            scenario.expect(life.wait() == 0, f"the last life failed\n{life.tail()}")
            stores = store_digests([folder / name / "store"], folder / "read.log")
            ends.append((life.said.get("digest"), stores, files_of(folder / name)))
        course.take([disturbed])
        course.compare(ends[0], [undisturbed], ends[1])


def kill_part(scenario: Scenario, folder: Path, kills: int, *, transport: str, servers: int, victim: str) -> None:
    """Kill one kind of process of a run with two workers, `server`, `worker` or `switch`."""
    folder.mkdir()
    site = Site(folder / "disturbed", transport, servers, commit_every=scenario.commit_every)
    clock, course = Clock(scenario.name), Course(scenario)
    kill_one = _kill_switch if victim == "switch" else partial(_kill_for_good, victim=victim)
    with ending(site.lives):
        for number in range(kills):
            moment = MOMENTS[number % len(MOMENTS)]
            kill_one(scenario, site, clock, course, moment)
            scenario.kills += 1
            scenario.moments[moment] += 1
        if any(worker.status is None for worker in site.workers):
            _end_workers(site, clock, course)
        target = course.last + LAST_STEPS
        end = site.finish(target)
        course.take(site.workers)
    undisturbed = Site(folder / "undisturbed", transport, servers)
    with ending(undisturbed.lives):
        expected = undisturbed.finish(target)
    course.compare(end, undisturbed.workers, expected)


def _kill_for_good(scenario: Scenario, site: Site, clock: Clock, course: Course, moment: str, *, victim: str) -> None:
    """Kill a server or a worker, which ends the run for the others; they must say so."""
    site.start()
    workers = site.start_workers()
    clock.wait(moment, workers, site.nodes)
    among = site.servers if victim == "server" else workers
    killed = among[clock.number(len(among))]
    killed.kill()
    at = time.monotonic()
    survivors = [worker for worker in workers if worker is not killed]
    for worker in survivors:
        worker.ended() or worker.take()
        if "resumed" not in worker.said:  # it still waits for the others, or for a server: a supervisor ends it
            worker.kill()
    watch(
        survivors, lambda: all(worker.status is not None for worker in survivors), "the workers to end", NOTICED_SECONDS
    )
    scenario.slowest_notice_seconds = max(scenario.slowest_notice_seconds, time.monotonic() - at)
    # One of several servers that lives may be the first to tell a worker that its colleague has ended, and why.
    expected = {LOST[victim]} if len(site.servers) == 1 else {LOST[victim], LOST["worker"]}
    for worker in survivors:
        if "resumed" in worker.said:
            scenario.expect(
                worker.status == work.FAILED and worker.said.get("error") in expected,
                f"a {victim} was killed, and {worker.name} ended with {worker.status}, {worker.said.get('error')}",
            )
    site.end_set()
    clock.learn(workers)
    course.take(workers)


def _kill_switch(scenario: Scenario, site: Site, clock: Clock, course: Course, moment: str) -> None:
    """Kill a switch, start it again, and see all workers go on; for one that opens, the workers are new."""
    site.start()
    if moment == OPENING and site.workers:
        _end_workers(site, clock, course)
    if not site.workers or site.workers[0].status is not None:
        site.start_workers()
    workers = site.workers
    clock.wait(moment, workers, site.nodes)
    site.switches[clock.number(len(site.switches))].kill()
    at = time.monotonic()
    site.start()
    before = [worker.counts["committed"] for worker in workers]

    def go_on() -> bool:
        return all(worker.counts["committed"] >= count + 2 for worker, count in zip(workers, before, strict=True))

    watch(
        [*workers, *site.nodes], lambda: go_on() or any(w.status is not None for w in workers), "the workers to go on"
    )
    scenario.slowest_notice_seconds = max(scenario.slowest_notice_seconds, time.monotonic() - at)
    scenario.expect(
        go_on(), "\n".join(["a switch was started again, and the run failed", *(w.tail() for w in workers)])
    )


def _end_workers(site: Site, clock: Clock, course: Course) -> None:
    """End a set of workers that would go on for ever."""
    for worker in site.workers:
        worker.kill()
    clock.learn(site.workers)
    course.take(site.workers)
