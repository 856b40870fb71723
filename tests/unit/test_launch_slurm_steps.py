"""The end of a Slurm job's steps: a server has time to write, unless its node is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from luwu.errors import ServerError
from luwu.launch.slurm import Slurm
from luwu.launch.slurm_run import end_step

WAITS = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"


@pytest.fixture
def step() -> Iterator[subprocess.Popen[str]]:
    """A step that goes on after SIGTERM, until its standard input ends."""
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    with process:
        yield process
        process.kill()


def test_a_step_that_does_not_end_is_killed(step: subprocess.Popen[str]) -> None:
    end_step(step, 0.01)
    assert step.wait() < 0


def test_a_server_has_the_time_that_it_needs_while_its_node_is_there(step: subprocess.Popen[str]) -> None:
    looks = 0

    def node_is_there() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ServerError("Slurm's controller does not answer")
        if looks == 3:
            assert step.stdin is not None
            step.stdin.close()
        return True

    end_step(step, 0.01, node_is_there)
    assert looks >= 3
    assert step.wait() == 0


def test_a_server_whose_node_is_lost_is_killed(step: subprocess.Popen[str]) -> None:
    answers = iter([True, False])
    end_step(step, 0.01, lambda: next(answers))
    assert step.wait() < 0


def test_the_time_that_a_job_has_is_slurms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setattr(Slurm, "_names", lambda self, listed: [listed])
    job = Slurm()
    for end, known in (("", False), ("never", False), (str(int(time.time()) + 100), True)):
        monkeypatch.setenv("SLURM_JOB_END_TIME", end)
        left = job.seconds_left()
        assert (left is not None) == known
        assert left is None or 90 < left <= 100
