"""Kills of servers with a standby on the same machine: it takes over, and the server that was killed follows it.

The two have a folder and an address each and take turns. Every other take-over is a person's, with `luwu standby
take-over`; the others come by themselves. Every fifth server that was killed is first started as the server that it
was: it must let no step be made.
"""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError
from kit.kills import work
from kit.kills.course import COMMITTING, TRAINING, Clock, Course, Scenario
from kit.kills.network import LAST_STEPS, LOST, NOTICED_SECONDS
from kit.kills.processes import Life, ending, say, watch
from kit.kills.sites import ANY_PORT, WORKERS, store_digests
from luwu.control.credentials import find_credentials
from luwu.control.status import ask_status
from luwu.core.errors import LuwuError

MOMENTS = (TRAINING, COMMITTING)
ALONE_SECONDS = 1
STARTED_ANYWAY_EVERY = 5
LOOK_SECONDS = 0.05


class Pair:
    """Two servers' folders and addresses on this machine, and the workers; `lives` has all that ever lived."""

    def __init__(self, folder: Path, workers: int = WORKERS) -> None:
        self.folder, self._workers = folder, workers
        folder.mkdir()
        self.lives: list[Life] = []
        self.servers: list[Life | None] = [None, None]
        self.urls = ["", ""]
        self.serving = 0

    @property
    def stores(self) -> list[Path]:
        """The two stores."""
        return [self.folder / f"store-{number}" for number in range(2)]

    def start(self, number: int, *more: str) -> Life:
        """Start one of the two, and return once it listens; always at the address that it had first."""
        listen = self.urls[number].removeprefix("luwu://") or ANY_PORT
        words = [
            "server", "--store", str(self.stores[number]), "--workers", str(self._workers), "--listen", listen,
            "--memory", f"{work.MEMORY_BYTES >> 20}MiB", "--optimizer-threads", "1", *more,
        ]  # fmt: skip
        log = self.folder / f"server-{number}.log"
        life = self.add(Life(f"server {number}", log, partial(work.run_luwu, *words)))
        watch([life], lambda: bool(life.texts) or life.status is not None, f"{life.name} to listen")
        if life.status is not None:
            raise BenchmarkError(f"it ended before it listened\n{life.tail()}")
        self.servers[number] = life
        self.urls[number] = life.texts[0]
        return life

    def follow(self, number: int, *more: str) -> Life:
        """Start one of the two as the standby of the other."""
        return self.start(number, "--standby-of", self.urls[1 - number], *more)

    def start_workers(self, until: int = work.ENDLESS) -> list[Life]:
        """Start a set of workers of the one that serves."""
        run = partial(work.remote_worker, self.urls[self.serving])
        return [
            self.add(
                Life(f"worker {rank}", self.folder / f"worker-{rank}.log", partial(run, rank, self._workers, until))
            )
            for rank in range(self._workers)
        ]

    def wait(self, number: int, what: str) -> Life:
        """Return once one of the two says of itself that it is in sync, or has taken over."""
        life = self.add(Life(f"{what} of {number}", self.folder / "asks.log", partial(_ask, self.urls[number], what)))
        if life.wait() != 0:
            raise BenchmarkError(f"server {number} has not become {what}\n{life.tail()}")
        return life

    def add(self, life: Life) -> Life:
        """Keep a process, so that it is ended in any case."""
        self.lives.append(life)
        return life

    def stop(self) -> None:
        """End both as a user does."""
        for life in self.servers:
            if life is not None and life.status is None:
                life.signal(signal.SIGTERM)
                if life.wait() != 0:
                    raise BenchmarkError(f"exit status {life.status} after SIGTERM\n{life.tail()}")


def _ask(url: str, what: str) -> None:
    """Wait until a standby is in sync, or serves, in a process that may have threads."""
    credentials = find_credentials()
    while True:
        try:
            standby = ask_status(url, credentials).standby
        except LuwuError:
            time.sleep(LOOK_SECONDS)
            continue
        if (standby.follows and standby.in_sync) if what == "in sync" else not standby.follows and standby.generation:
            return say(generation=standby.generation)
        time.sleep(LOOK_SECONDS)


def kill_served(scenario: Scenario, folder: Path, kills: int) -> None:
    """Kill the one that serves, again and again, and go on with the other."""
    pair = Pair(folder)
    clock, course = Clock(scenario.name), Course(scenario)
    with ending(pair.lives):
        pair.start(0)
        pair.follow(1, "--take-over-after", str(ALONE_SECONDS))
        for number in range(kills):
            _kill_once(scenario, pair, clock, course, number)
        target = course.last + LAST_STEPS
        workers = pair.start_workers(target)
        for worker in workers:
            scenario.expect(worker.wait() == 0, f"the last set of workers failed\n{worker.tail()}")
        course.take(workers)
        pair.stop()
        end = [[worker.said.get("digest") for worker in workers], store_digests(pair.stores, folder / "read.log")]
    alone = Pair(folder / "undisturbed")
    with ending(alone.lives):
        alone.start(0)
        expected = alone.start_workers(target)
        for worker in expected:
            scenario.expect(worker.wait() == 0, f"the undisturbed run failed\n{worker.tail()}")
        alone.stop()
        values = store_digests(alone.stores[:1], folder / "read.log") * 2
        course.compare(end, expected, [[worker.said.get("digest") for worker in expected], values])


def _kill_once(scenario: Scenario, pair: Pair, clock: Clock, course: Course, number: int) -> None:
    served, standby = pair.serving, 1 - pair.serving
    workers = pair.start_workers()
    watch([*workers], lambda: all("resumed" in life.said for life in workers), "the workers to begin")
    pair.wait(standby, "in sync")
    moment = MOMENTS[number % len(MOMENTS)]
    clock.wait(moment, workers)
    victim = pair.servers[served]
    assert victim is not None
    victim.kill()
    scenario.kills += 1
    scenario.moments[moment] += 1
    watch(workers, lambda: all(life.status is not None for life in workers), "the workers to end", NOTICED_SECONDS)
    for worker in workers:
        scenario.expect(
            worker.status == work.FAILED and worker.said.get("error") in (LOST["server"], LOST["worker"]),
            f"{worker.name} ended with {worker.status}, {worker.said.get('error')}",
        )
    clock.learn(workers)
    course.take(workers)
    by_itself = number % 2 == 0
    if not by_itself:
        words = ("standby", "take-over", "--anyway", pair.urls[standby])
        said = pair.add(Life("take-over", pair.folder / "asks.log", partial(work.run_luwu, *words)))
        scenario.expect(said.wait() == 0, f"luwu standby take-over failed\n{said.tail()}")
    at = time.monotonic()
    pair.wait(standby, "serving")
    scenario.slowest_notice_seconds = max(scenario.slowest_notice_seconds, time.monotonic() - at)
    pair.serving = standby
    if number % STARTED_ANYWAY_EVERY == 0:
        _start_anyway(scenario, pair, served)
    pair.follow(served, *(("--take-over-after", str(ALONE_SECONDS)) if number % 2 == 1 else ()))


def _start_anyway(scenario: Scenario, pair: Pair, number: int) -> None:
    """Start the server that was killed as the server that it was: it must let no worker make a step."""
    pair.start(number)
    url = pair.urls[number]
    worker = pair.add(Life("worker 0", pair.folder / "fenced.log", partial(work.remote_worker, url, 0, WORKERS, 1)))
    scenario.expect(worker.wait() == work.FAILED, f"a server that was replaced let a worker train\n{worker.tail()}")
    scenario.expect("committed" not in worker.said, "a server that was replaced committed a step")
    life: Any = pair.servers[number]
    life.signal(signal.SIGTERM)
    scenario.expect(life.wait() == 0, f"it did not end well\n{life.tail()}")
