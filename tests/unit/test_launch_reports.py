"""Reports of workers: a worker that reports steps waits for the launcher, which may wait for room on a full disk."""

from __future__ import annotations

import os
import threading

import pytest

from luwu.errors import ServerError
from luwu.launch.reports import STEPS_AHEAD, ReportPipe, pipe_reporter

STEPS = 200


def test_a_worker_is_few_steps_ahead_of_the_launcher():
    sent, ahead = 0, []
    pipe = ReportPipe(0, lambda rank, report: ahead.append(sent - report["number"]))
    report = pipe_reporter(pipe.write_descriptor)
    for number in range(STEPS):
        sent = number
        report({"kind": "step", "number": number})
    pipe.given_away()
    pipe.wait(60)
    assert len(ahead) == STEPS
    assert max(ahead) <= STEPS_AHEAD


def test_a_launcher_that_does_not_answer_holds_the_worker_up():
    going_on, first = threading.Event(), threading.Event()

    def wait(rank, report):
        first.set()
        going_on.wait(60)

    pipe = ReportPipe(0, wait)
    report = pipe_reporter(pipe.write_descriptor)
    report({"kind": "say"})  # is not answered
    for number in range(STEPS_AHEAD):
        report({"kind": "step", "number": number})
    worker = threading.Thread(target=report, args=({"kind": "step", "number": STEPS_AHEAD},))
    worker.start()
    assert first.wait(60)
    worker.join(0.1)
    assert worker.is_alive()
    going_on.set()
    worker.join(60)
    assert not worker.is_alive()
    pipe.given_away()
    pipe.wait(60)


def test_a_worker_without_a_launcher_gets_the_typed_error():
    pipe = ReportPipe(0, lambda rank, report: None)
    end = os.dup(pipe.write_descriptor)
    pipe.given_away()
    report = pipe_reporter(end)
    report({"kind": "step"})
    pipe._own.shutdown(2)
    with pytest.raises(ServerError, match="launcher of this process ended"):
        for _ in range(STEPS):
            report({"kind": "step"})
    os.close(end)
    pipe.wait(60)
