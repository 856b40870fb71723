"""Restarts of workers, and whether those of a run that has failed join again."""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from luwu.core.errors import NotUnderWayError, ServerError
from luwu.core.exits import Exit
from luwu.launch import returning as returning_module
from luwu.launch.asking import server_of
from luwu.launch.folder import RunFolder
from luwu.launch.job import CredentialFiles, Job, ServerAccess, mark_ended
from luwu.launch.outcome import Outcome
from luwu.launch.processes import Ended, ended_from_outside
from luwu.launch.restarts import Restarts
from luwu.launch.returning import Returning, run_job
from luwu.launch.settings import build_settings
from luwu.observe.display import Display
from luwu.watch.runs import WatchedRun

LOST, BROKEN, KILLED = Exit.SERVER_LOST, Exit.FAILED, -9


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def ended(*statuses):
    return [Ended(rank, status) for rank, status in enumerate(statuses)]


@pytest.mark.parametrize(
    ("statuses", "borne"),
    [
        ((LOST, LOST), True),
        ((LOST,), True),
        ((LOST, KILLED), True),
        ((), False),  # it failed before it had workers
        ((LOST, BROKEN), False),  # an error of a worker is in its program
        ((KILLED, BROKEN), False),
    ],
)
def test_losses_from_elsewhere_are_told_from_errors_of_workers(statuses, borne):
    assert ended_from_outside(ended(*statuses)) == borne


@pytest.mark.parametrize(
    ("seconds", "restarts", "statuses", "joins"),
    [
        (10, 0, (LOST, LOST), True),
        (0, 0, (LOST, LOST), False),  # the user does not want to wait
        (10, 0, (LOST, KILLED), False),
        (0, 1, (LOST, KILLED), True),
        (0, 1, (KILLED, KILLED), False),
        (0, 2, (KILLED, KILLED), True),
    ],
)
def test_losses_from_elsewhere_are_borne(seconds, restarts, statuses, joins):
    word = Returning(seconds, Restarts(restarts), Clock()).lose(ended(*statuses), 7, committed=False)
    assert "step 7" in word if joins else word == ""


def test_time_begins_with_the_first_loss_since_a_commit():
    clock = Clock()
    returning = Returning(10, Restarts(0), clock)
    assert "until" in returning.lose(ended(LOST), 7, committed=False)
    assert returning.connect_seconds == 10
    clock.now += 6
    assert returning.lose(ended(LOST), 7, committed=False)
    assert returning.connect_seconds == 4
    clock.now += 3
    assert returning.lose(ended(LOST), 8, committed=True)
    assert returning.connect_seconds == 10
    clock.now += 10
    assert returning.lose(ended(LOST), 8, committed=False) == ""


def test_restarts_are_those_of_the_whole_run():
    returning = Returning(10, Restarts(2), Clock())
    for joins in (True, True, False):
        assert bool(returning.lose(ended(KILLED, LOST), 7, committed=True)) == joins
    assert returning.connect_seconds is None  # the server is there


def test_a_worker_is_killed_once_for_each_end_of_its_session():
    killed = []
    workers = SimpleNamespace(kill_one=killed.append, failed=list)
    restarts = Restarts(3)
    for _ in range(2):  # of two other workers
        restarts.note_fenced(1)
    said = list(restarts.look(workers, may_start=True))
    assert (killed, said) == ([1], ["the server has ended the session of worker 1; it is killed"])
    restarts.note_start(1)
    restarts.note_fenced(1)
    assert len(list(restarts.look(workers, may_start=True))) == 1
    assert killed == [1, 1]


@pytest.mark.parametrize("failed", [False, True])
def test_a_run_whose_server_is_elsewhere_ends_with_its_launcher(tmp_path, monkeypatch, failed):
    folder = RunFolder(tmp_path)

    def run(settings, folder, display, server, *_, **__):
        Job(settings=settings, folder=str(tmp_path), socket_path=None, launcher_pid=os.getpid(), server=server).write(
            folder.job_path
        )
        os.utime(folder.job_path, (7, 7))
        if failed:
            raise ServerError("it has ended")
        return Outcome()

    monkeypatch.setattr(returning_module, "_run_on", run)
    server = ServerAccess(url="luwu://127.0.0.1:1")
    arguments = (build_settings({}), folder, Display.__new__(Display), server)
    monkeypatch.setattr(returning_module, "_tell_failure", lambda *_: None)
    with pytest.raises(ServerError) if failed else nullcontext():
        run_job(*arguments, takes_weights=False, credentials=CredentialFiles())
    assert folder.job_path.stat().st_mtime == 7  # since when its alerts count
    (tmp_path / "metrics.jsonl").write_text("")
    watched = WatchedRun(str(tmp_path))
    watched.refresh()
    assert watched.state["ended"]
    with pytest.raises(NotUnderWayError):
        server_of(tmp_path)


def test_a_launcher_marks_no_job_of_another_one(tmp_path):
    path = tmp_path / "job.json"
    mark_ended(path)
    assert not path.exists()
    Job(settings=build_settings({}), folder=str(tmp_path), socket_path=None, launcher_pid=os.getpid() + 1).write(path)
    mark_ended(path)
    assert not Job.read(path).ended
