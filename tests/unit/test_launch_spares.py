"""Spare workers that wait for a place."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager

import pytest

from luwu.launch.reports import NO_RANK, ReportPipe, read_rank
from luwu.launch.spares import Spares
from luwu.launch.starting import ReportingProcess

WAITS, ENDS = ("cat",), ("true",)


@contextmanager
def spares_of(folder, wanted, *commands):
    """Spares whose processes are these commands, one after the other; and the workers' ends of their pipes."""
    coming, ends = iter(commands), []

    def start(log):
        log.touch()
        command = next(coming)
        if command is None:
            raise OSError("no process")
        pipe = ReportPipe(NO_RANK, lambda rank, report: None)
        ends.append(pipe.write_descriptor)
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        return ReportingProcess(process, pipe, log)

    spares = Spares(wanted, start, lambda number: folder / f"spare-{number}.log")
    try:
        yield spares, ends
    finally:
        spares.kill()
        for end in ends:
            os.close(end)


def test_a_spare_takes_a_rank_and_another_waits(tmp_path):
    with spares_of(tmp_path, 2, WAITS, WAITS, WAITS) as (spares, ends):
        assert list(spares.fill()) == list(spares.fill()) == []
        taken = spares.take(5, tmp_path / "worker-5.log")
        assert taken.log == tmp_path / "worker-5.log"
        assert read_rank(ends[0]) == 5
        assert sorted(path.name for path in tmp_path.iterdir()) == ["spare-1.log", "worker-5.log"]
        assert list(spares.fill()) == []
        assert sorted(path.name for path in tmp_path.iterdir()) == ["spare-0.log", "spare-1.log", "worker-5.log"]
        taken.process.kill()
        taken.process.wait()


def test_a_spare_that_ends_is_told_of_and_not_replaced(tmp_path):
    with spares_of(tmp_path, 2, ENDS, WAITS) as (spares, _):
        assert list(spares.fill()) == []
        spares._waiting[0].process.wait()
        (said,) = spares.fill()
        assert said == f"a spare worker has ended, its log is {tmp_path / 'spare-0.log'}; the run goes on with 1 spare"
        assert list(spares.fill()) == []


def test_a_spare_that_cannot_start_does_not_end_the_run(tmp_path):
    with spares_of(tmp_path, 1, None) as (spares, _):
        assert list(spares.fill()) == ["a spare worker cannot start: no process; the run goes on with 0 spares"]
        assert spares.take(0, tmp_path / "worker-0.log") is None


def test_spares_that_have_ended_take_no_place(tmp_path):
    with spares_of(tmp_path, 1, ENDS) as (spares, _):
        assert list(spares.fill()) == []
        spares._waiting[0].process.wait()
        assert spares.take(0, tmp_path / "worker-0.log") is None
        assert [path.name for path in tmp_path.iterdir()] == ["spare-0.log"]


@pytest.mark.parametrize("told", [b"", b"1"])
def test_a_spare_without_a_launcher_gets_no_rank(told):
    reading, writing = os.pipe()
    os.write(writing, told)
    os.close(writing)
    assert read_rank(reading) is None
    os.close(reading)
