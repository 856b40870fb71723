"""Kills of `luwu train` as a user runs it: of a worker, or the launcher, which is the server where none is named."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from harness.training import prepare_small_run, steps_of
from kit.common import BenchmarkError
from kit.kills.course import OPENING, TRAINING, Clock, Scenario
from kit.kills.processes import Life, command, ending, files_of, processes_naming, watch
from kit.kills.sites import SHARED_MEMORY, Site, store_digests
from luwu.observe.memory import process_tree

LAUNCHER, WORKER = "launcher", "worker"
MOMENTS = (OPENING, TRAINING)
STEPS_A_LIFE = 4
OPENING_SECONDS = 2.0  # until one was seen
STEP_SECONDS = 0.05  # a little more than a step takes
GONE_SECONDS = 30.0


class Trainee:
    """A run of `luwu train` in a folder: started again and again, with the same command."""

    def __init__(self, folder: Path, name: str, site: Site, workers: int, steps: int) -> None:
        self.run = folder / name
        self.lives: list[Life] = []
        self.site = site
        self._folder = folder
        self._workers, self._steps = workers, steps

    @property
    def local(self) -> bool:
        """Return true when the launcher is the server."""
        return self.site.transport == SHARED_MEMORY

    @property
    def stores(self) -> list[Path]:
        """The folders of the servers' stores."""
        return [self.run / "store"] if self.local else self.site.stores

    def start(self) -> Life:
        """Start the launcher, after the servers where they are apart."""
        words = [
            "-m", "luwu.cli", "train", "--config", str(self._folder / "settings.toml"), "--run", str(self.run),
            "--data", str(self._folder / "text"), "--workers", str(self._workers), "--steps", str(self._steps),
            "--restarts", "0",
        ]  # fmt: skip
        if not self.local:
            self.site.start()
            words += ["--server", self.site.url]
        self.lives.append(command("luwu train", self._folder / f"{self.run.name}.log", words))
        return self.lives[-1]

    def rows(self) -> list[bytes]:
        """Rows of metrics.jsonl that are there whole: the steps that the run has told as committed."""
        with contextlib.suppress(FileNotFoundError):
            return (self.run / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        return []

    def workers(self, life: Life) -> list[int]:
        """Processes that prepare the text or train.

        Not those that have ended, or are about to: their command line is empty, and a signal does nothing to them.
        """
        ours = set(processes_naming(str(self.run)))
        return [process for process in process_tree(life.pid)[1:] if process in ours]

    def wait_until_gone(self) -> None:
        """Return when no process of the run lives."""
        watch([], lambda: not processes_naming(str(self.run)), f"the processes of {self.run} to end", GONE_SECONDS)

    def finish(self) -> dict[str, Any]:
        """Train to the end; what is there then, as one run has it like another."""
        life = self.start()
        if life.wait() != 0:
            raise BenchmarkError(f"the last life failed\n{life.tail()}")
        self.wait_until_gone()
        if not self.local:
            self.site.stop()
        digests = store_digests(self.stores, self._folder / "read.log")
        return {"steps": steps_of(self._folder, self.run.name), "stores": digests, "files": sorted(files_of(self.run))}


def kill_train(
    scenario: Scenario, folder: Path, kills: int, *, transport: str, servers: int, victim: str, workers: int
) -> None:
    """Kill the launcher, or one worker after the other."""
    folder.mkdir()
    prepare_small_run(folder, workers)
    clock = Clock(scenario.name)
    # More than are made on a quiet machine: where this process gets its turn late, a life makes more before its kill.
    steps = 3 * (2 * STEPS_A_LIFE + 4) * kills + STEPS_A_LIFE
    run = Trainee(folder, "disturbed", Site(folder / "servers", transport, servers, workers), workers, steps)
    openings = [OPENING_SECONDS]
    with ending(run.site.lives), ending(run.lives):
        for number in range(kills):
            moment = MOMENTS[number % len(MOMENTS)]
            before = run.rows()
            life = run.start()
            _wait(run, life, clock, moment, openings)
            if victim == LAUNCHER:
                life.kill()
            else:
                _kill_worker(scenario, run, life, clock)
            scenario.kills += 1
            scenario.moments[moment] += 1
            at = time.monotonic()
            run.wait_until_gone()
            scenario.slowest_notice_seconds = max(scenario.slowest_notice_seconds, time.monotonic() - at)
            _look(scenario, run, life, before)
        before = run.rows()
        end = run.finish()
        _look(scenario, run, run.lives[-1], before)
    undisturbed = Trainee(folder, "undisturbed", Site(folder / "others", transport, servers, workers), workers, steps)
    with ending(undisturbed.site.lives), ending(undisturbed.lives):
        expected = undisturbed.finish()
    for what in expected:
        scenario.expect(end[what] == expected[what], f"the end: {what}: expected {expected[what]}, found {end[what]}")


def _wait(run: Trainee, life: Life, clock: Clock, moment: str, openings: list[float]) -> None:
    """Return at a random instant of the run's start, or between steps of its training."""

    def rows(count: int) -> bool:
        if life.ended():
            raise BenchmarkError(f"luwu train ended before its kill\n{life.tail()}")
        return len(run.rows()) >= count

    if moment == OPENING:
        clock.sleep(openings[-1])
        return
    began = len(run.rows())
    watch([life], lambda: rows(began + 1), "a step of luwu train")
    openings.append(time.monotonic() - life.began)
    wanted = began + clock.number(STEPS_A_LIFE)
    watch([life], lambda: rows(wanted), "steps of luwu train")
    clock.sleep(STEP_SECONDS)


def _kill_worker(scenario: Scenario, run: Trainee, life: Life, clock: Clock) -> None:
    """Kill a child of the launcher, a worker or what prepares the text; the launcher must say so and end the rest."""
    watch([life], lambda: bool(run.workers(life)) or life.status is not None, "children of luwu train")
    workers = run.workers(life)
    os.kill(workers[clock.number(len(workers))], signal.SIGKILL)
    scenario.expect(life.wait() == 1, f"a child was killed, and luwu train ended with {life.status}")
    scenario.expect("was killed by SIGKILL" in life.tail(), f"it does not say so\n{life.tail()}")


def _look(scenario: Scenario, run: Trainee, life: Life, before: list[bytes]) -> None:
    """Look at the rows after a kill, and where the life before it had resumed.

    A single server answers a step, which then has its row, before it is on the disk; no step after it.
    """
    rows, kept = run.rows(), max(0, len(before) - (scenario.servers == 1))
    scenario.expect(rows[:kept] == before[:kept], "rows of metrics.jsonl were lost")
    resumed = [int(text.split()[3]) for text in life.texts if text.startswith("resuming after step")]
    if resumed:
        scenario.resumes += 1
        scenario.expect(resumed[0] >= kept, f"{len(before)} was announced, {resumed[0]} was resumed")
