"""The network's server and its sessions over a data plane in memory: training, losses and resuming."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.integration.fabric_worker import GROUP, NumpyWorker, small_manifest
from tests.unit.fake_core import CORES
from tests.unit.network_serving import QUICK, join, serve, together, train

import luwu
from luwu.control import client as control
from luwu.errors import ManifestMismatchError, ServerError, WorkerLostError
from luwu.server.participants import Participant
from luwu.store.run_record import Claim, RunRecord

__all__ = ["serve"]  # a fixture


def test_the_log_says_where_the_store_stands_that_no_run_has_open(serve, tmp_path, caplog):
    with luwu.open(tmp_path, memory="64MiB") as session:
        model = luwu.parallelize(torch.nn.Linear(8, 4), session)
        optimizer = luwu.AdamW(model, lr=1e-2)
        for _ in range(2):
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
    server = serve()
    assert server.step == 2
    with caplog.at_level("ERROR", logger="luwu"), pytest.raises(ManifestMismatchError), join(server) as session:
        train(session)
    assert "failed job=" in caplog.text and " step=2 error=ManifestMismatchError" in caplog.text


def test_a_session_trains_and_the_next_one_resumes(serve):
    server = serve()
    with join(server) as session:
        worker = train(session)
        values = worker.read(1)
        assert server.step == 3
    with join(server) as session:
        worker = NumpyWorker(session, small_manifest())
        assert (worker.fresh, session.step, session.attempts) == (False, 3, 3)
        assert np.array_equal(worker.read(1), values)
        assert worker.step()


def test_every_worker_is_told_whose_weights_the_run_goes_on_from(serve):
    """Every worker gets the message, whichever comes first; the launcher shows the first rank's."""
    server = serve(workers=2)

    def attach_as(run_id):
        def attach(session):
            session.claim = Claim(RunRecord(run_id, f"/runs/{run_id}"), takes_weights=True)
            NumpyWorker(session, small_manifest())
            return session.word

        return together(server, 2, attach)

    assert attach_as("one") == ["", ""]
    words = attach_as("two")
    assert words[0] == words[1] and "which the run /runs/one" in words[0]


def test_hyper_parameters_segments_and_roll_backs_arrive(serve):
    server = serve()
    with join(server) as session:
        worker = NumpyWorker(session, small_manifest())
        session.set_segments(1, [(10, 0), (5000, 1)])
        session.report({"kind": "step", "loss": 1.5})
        core = CORES[max(CORES)]
        assert core.segments == {1: [(10, 0), (5000, 1)]}
        session.endpoint.begin([GROUP, (1.0, 0.5, 0.25, 0.125, 0.0625)])
        assert core.groups[0] == [GROUP, (1.0, 0.5, 0.25, 0.125, 0.0625)]
        assert session.endpoint.wait(session.endpoint.commit(skip=True)) == 0
        session.count_step(False)
        assert worker.step()
        assert (core.disk.attempts, core.disk.rolled_back, session.rolled_back) == (2, 1, 1)


def test_a_vote_tells_all_workers_after_which_attempt_to_stop(serve):
    """It tells the server's owner what the worker reports with it, too, before the attempt ends."""
    reported = []
    server = serve(workers=2, on_report=lambda *words: reported.append(words))

    def work(session):
        worker = NumpyWorker(session, small_manifest())
        told = []
        for attempt in range(3):
            if (session.rank, attempt) == (1, 1):
                session.endpoint.ask_to_stop(attempt)
                session.endpoint.report_with_vote('{"attempt": 1}')
            worker.step()
            told.append(session.endpoint.last_attempt)
        return told

    assert together(server, 2, work) == [[None, 1, 1]] * 2
    assert reported == [(1, {"attempt": 1})]


def test_workers_begin_together_and_each_set_of_them_resumes(serve):
    server = serve(workers=3)
    for expected in (2, 4):
        results = together(server, 3, lambda session: (train(session, 2), session.step)[1])
        assert results == [expected] * 3


def test_ctrl_c_ends_the_wait_for_a_commit(serve, interrupt_handler):
    server = serve(workers=2)
    with ThreadPoolExecutor(2) as pool:
        sessions = list(pool.map(lambda rank: join(server, rank, 2), range(2)))
        workers = list(pool.map(lambda session: NumpyWorker(session, small_manifest()), sessions))
        endpoint, core = workers[0].endpoint, CORES[max(CORES)]

        def interrupt():
            with core.changed:
                core.changed.wait_for(lambda: core.votes, 30)
            os.kill(os.getpid(), signal.SIGINT)

        endpoint.begin([GROUP])
        vote = endpoint.commit(skip=True)
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            endpoint.wait(vote)
    for session in sessions:
        session.close()


def test_a_missing_worker_is_named_when_the_time_is_over(serve):
    server = serve(workers=3, timeouts=QUICK.model_copy(update={"gather_seconds": 0.5}))
    with pytest.raises(WorkerLostError, match=r"worker 1, 2 of 3 did not come within 0\.5 s"):
        with join(server, 0, 3) as session:
            session.attach(small_manifest())


def test_a_lost_worker_fails_the_others_and_the_next_set_goes_on(serve):
    server = serve(workers=2)
    both_stepped = threading.Barrier(2)

    def work(session):
        worker = train(session, 3)
        both_stepped.wait(60)
        if session.rank == 1:
            raise ServerError("this worker fails")
        return worker.step()

    errors = together(server, 2, work)
    assert isinstance(errors[0], WorkerLostError)
    assert "worker 1 ended without leaving; the run stands at step 3" in str(errors[0])
    assert together(server, 2, lambda session: (train(session, 2), session.step)[1]) == [5, 5]


def test_a_worker_of_a_failed_run_is_told_at_every_call(serve):
    server = serve(workers=2)
    with ThreadPoolExecutor(2) as pool:
        sessions = list(pool.map(lambda rank: join(server, rank, 2), range(2)))
        workers = list(pool.map(lambda session: NumpyWorker(session, small_manifest()), sessions))
    sessions[1]._end(failed=True)
    for _ in range(2):
        with pytest.raises(WorkerLostError, match="worker 1 ended without leaving"):
            workers[0].step()
            workers[0].step()
    with pytest.raises(WorkerLostError):
        workers[0].read(0)
    sessions[0].close()


def test_a_worker_that_hangs_on_to_a_failed_run_does_not_hold_up_the_next(serve):
    server = serve(workers=2)
    with ThreadPoolExecutor(2) as pool:
        stale, gone = pool.map(lambda rank: join(server, rank, 2), range(2))
    gone._end(failed=True)
    assert together(server, 2, lambda session: (train(session, 2), session.step)[1]) == [2, 2]
    with pytest.raises(WorkerLostError, match="worker 1 ended"):
        stale.attach(small_manifest())
    stale.close()


def test_a_closed_server_is_named_to_its_workers(serve):
    server = serve()
    session = join(server)
    worker = train(session)
    server.close()
    with pytest.raises(ServerError, match=r"the server at luwu://.* was stopped; the store stands at step 3"):
        worker.step()
    session.close()


def test_a_server_that_is_closed_is_named_where_its_reason_comes_after_the_end_of_a_call(serve, monkeypatch):
    asked = threading.Event()
    hear_why, end = control.ControlClient._hear_why, control.ControlClient._end
    monkeypatch.setattr(control.ControlClient, "_hear_why", lambda client: (asked.set(), hear_why(client)))
    monkeypatch.setattr(control.ControlClient, "_end", lambda client, error: (asked.wait(60), end(client, error)))
    server = serve()
    with join(server) as session:
        worker = train(session)
        server.close()
        with pytest.raises(ServerError, match=r"the server at luwu://.* was stopped"):
            worker.step()


def test_a_server_that_is_closed_is_named_where_a_call_fails_before_its_reason_comes(serve, monkeypatch):
    failed, tell = threading.Event(), Participant.tell

    def tell_later(participant, event):
        if event.HasField("closing"):
            failed.wait(60)
        tell(participant, event)

    monkeypatch.setattr(Participant, "tell", tell_later)
    server = serve()
    with join(server) as session, ThreadPoolExecutor(1) as pool:
        worker = train(session)
        closed = pool.submit(server.close)
        try:
            with pytest.raises(ServerError, match=r"the server at luwu://.* was stopped"):
                while True:
                    worker.step()
        finally:
            failed.set()
        closed.result(60)


def test_the_others_learn_which_server_ended_a_worker_of_several_servers(serve):
    server = serve(workers=2)

    def work(session):
        worker = NumpyWorker(session, small_manifest())
        if session.rank == 1:
            session._fail(ServerError("the server at luwu://elsewhere:7070 ended"))
            with pytest.raises(ServerError):
                worker.step()
            raise ServerError("as a script ends")
        while worker.step():
            pass

    first, _ = together(server, 2, work)
    assert isinstance(first, WorkerLostError)
    assert "worker 1 failed: the server at luwu://elsewhere:7070 ended" in str(first)
