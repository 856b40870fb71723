"""A server and its switches over a data plane in memory: places, losses and returns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from tests.integration.fabric_worker import small_manifest
from tests.unit.network_serving import QUICK, hang_on, join, make_switch, serve, train

from luwu.control import control_pb2 as pb
from luwu.control.timeouts import Timeouts
from luwu.core.division import Share
from luwu.errors import ConfigError, WorkerLostError
from luwu.server.run import Run, Terms, Worker
from luwu.server.topology import NOWHERE, PacketOrigin

__all__ = ["serve"]  # a fixture


def test_a_run_waits_for_its_switches_and_tells_everybody_their_place(serve, monkeypatch):
    server = serve(workers=1, switches=1)
    switch = make_switch()
    switch.watched = True
    ready = []

    def plan(topology):
        ready.append(topology)
        place = pb.Topology(job=topology.job, workers=1, address="10.0.0.3", port=topology.port)
        return {"worker 0": place, "switch a": pb.Topology(job=topology.job, workers=1, port=topology.port)}

    monkeypatch.setattr(server._runs, "_plan", plan)
    with join(server) as session, ThreadPoolExecutor(1) as pool:
        attaching = pool.submit(session.attach, small_manifest())
        while server._runs.run.missing:  # nothing tells when a worker has attached and waits for a switch
            pass
        assert not ready
        server._runs.join_switch(switch)
        assert attaching.result(60)
        assert session._link.settings.servers[0].address == "10.0.0.3"
    assert [member.name for member in ready[0].switches] == ["switch a"]
    assert switch.events.get(timeout=60).topology.port == ready[0].port


def test_a_switch_that_does_not_come_back_fails_the_run(serve, monkeypatch):
    server = serve(workers=1, switches=1, timeouts=Timeouts(**QUICK.model_dump() | {"switch_return_seconds": 0.2}))
    switch = make_switch()
    switch.watched = True
    server._runs.join_switch(switch)
    hang_on(server, monkeypatch, switch.name)
    with join(server) as session:
        worker = train(session)
        server._runs.gone(switch)
        with pytest.raises(WorkerLostError, match=r"switch a ended and did not come back within 0\.2 s"):
            while True:
                worker.step()


def test_a_switch_that_comes_back_is_told_its_place_again(serve, monkeypatch):
    server = serve(workers=1, switches=1)
    first, elsewhere, second = make_switch(), make_switch(port=10), make_switch()
    server._runs.join_switch(first)
    hang_on(server, monkeypatch, first.name)
    with join(server) as session:
        worker = train(session)
        server._runs._end(first)
        with pytest.raises(ConfigError, match=r"was at .* port 9, where its neighbours send to; found .* port 10"):
            server._runs.join_switch(elsewhere)
        server._runs.join_switch(second)
        before, after = (switch.events.get(timeout=60).topology for switch in (first, second))
        assert after.job == before.job
        assert after.incarnation > before.incarnation  # or its heartbeats would be taken for old ones
        assert worker.step()


def test_a_switch_that_comes_back_takes_the_place_of_the_session_before(serve):
    server = serve(workers=1, switches=1)
    first, elsewhere, second = make_switch(), make_switch(port=10), make_switch()
    server._runs.join_switch(first)
    with pytest.raises(ConfigError, match="switch a has joined already"):
        server._runs.join_switch(elsewhere)
    server._runs.join_switch(second)
    server._runs._end(first)  # its end, noticed late, is not the second's
    assert server._runs.present_switches() == [second]
    with pytest.raises(WorkerLostError, match="switch a was started again at the same place"):
        server._runs.participants.find(first.token)


def test_a_switch_that_the_run_does_not_need_may_go(serve, monkeypatch):
    server = serve(workers=1, timeouts=Timeouts(**QUICK.model_dump() | {"switch_return_seconds": 0.01}))
    with join(server) as session:
        worker = train(session)
        spare = make_switch()
        server._runs.join_switch(spare)
        server._runs._end(spare)
        while server._runs._switches.lost:  # nothing tells when the server has looked
            assert worker.step()
        assert worker.step()


def test_a_worker_that_comes_for_a_lost_one_moves_nobody_in_the_tree(monkeypatch):
    """It and its neighbour are told; one that would move another worker, which is in the run, is refused."""
    run, switch = Run(2, lambda *about: None, QUICK), make_switch()
    monkeypatch.setattr(run, "core", lambda: nullcontext(SimpleNamespace(port=7)))
    stays, lost = run.add(0, 2, ""), run.add(1, 2, "")
    comes = Worker(name="worker 1", peer="", rank=1, run=run, tenure=2)

    def plan(below, position=0):
        return lambda ready: {
            "worker 0": pb.Topology(position=position),
            "worker 1": pb.Topology(),
            "switch a": pb.Topology(below=[pb.Neighbour(port=below)]),
        }

    for worker in (stays, lost):
        run.note_place(worker, NOWHERE)
    run.send_topology([switch], "", plan(1))
    assert stays.events.get(timeout=60).topology.position == switch.events.get(timeout=60).topology.incarnation == 0
    run.people = {0: stays, 1: comes}
    run.replace_in_tree(comes, lambda: [switch], "", plan(2))
    assert switch.events.get(timeout=60).topology.incarnation == 1
    assert comes.events.get(timeout=60).topology.incarnation == 1  # as heartbeats of the lost one are replays
    with pytest.raises(ConfigError, match=r"worker 1: it would move the other workers .* with the same --switch"):
        run.replace_in_tree(comes, lambda: [switch], "", plan(2, position=1))
    assert stays.events.empty() and switch.events.empty() and comes.events.empty()


def test_a_worker_that_has_not_said_where_it_is_counts_as_where_the_lost_one_was(monkeypatch):
    """Two workers are lost, and those that come for them have both joined when the first one attaches."""
    run = Run(2, lambda *about: None, QUICK)
    monkeypatch.setattr(run, "core", lambda: nullcontext(SimpleNamespace(port=7)))
    places = [PacketOrigin(f"10.0.0.{rank}", 5000, 1408) for rank in range(4)]
    plans = []

    def plan(ready):
        plans.append(ready.places)
        return {}

    for rank in (0, 1):
        run.note_place(run.add(rank, 2, ""), places[rank])
    run.send_topology([], "", plan)
    run.people = {rank: Worker(name="", peer="", rank=rank, run=run) for rank in (0, 1)}
    for rank in (0, 1):
        run.note_place(run.people[rank], places[2 + rank])
        run.replace_in_tree(run.people[rank], list, "", plan)
    assert plans == [tuple(places[:2]), (places[2], places[1]), tuple(places[2:])]


def test_a_run_whose_workers_keep_blocks_on_devices_waits_for_no_other_worker():
    """Over UDP all pull alike, and a worker that is new would have to pull what the others have."""
    run = Run(2, lambda *about: None, QUICK, worker_return_seconds=60)
    run.agree(Terms(Share()))
    with pytest.raises(ConfigError, match="device_memory"):  # and one that is refused changes nothing of that
        run.agree(Terms(Share(), frozenset({"embedding"})))
    assert run.vacancies.seconds == 60
    run = Run(2, lambda *about: None, QUICK, worker_return_seconds=60)
    run.agree(Terms(Share(), frozenset({"embedding"})))
    assert run.vacancies.seconds == 0
