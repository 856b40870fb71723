"""The network's server and its sessions over a data plane in memory: membership, refusals, losses, and resuming."""

from __future__ import annotations

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import grpc
import numpy as np
import pytest
import torch
from tests.integration.fabric_worker import GROUP, NumpyWorker, small_manifest
from tests.unit.fake_core import CORES, FakeCore, FakeLink

import luwu
from luwu.control import client as control
from luwu.control import control_pb2 as pb
from luwu.control.credentials import Credentials
from luwu.control.health import check_health
from luwu.control.probing import Answer
from luwu.control.rpc import PROTOCOL_VERSION
from luwu.control.timeouts import Timeouts
from luwu.errors import (
    AuthenticationError,
    ConfigError,
    LuwuError,
    ManifestMismatchError,
    ServerError,
    StoreLockedError,
    WorkerLostError,
)
from luwu.server.gate import Gate
from luwu.server.network import NetworkServer
from luwu.server.settings import ServerSettings
from luwu.server.topology import SwitchMember, star
from luwu.session.remote import RemoteSession
from luwu.store.run_record import Claim, RunRecord

KEY = Credentials(b"a key of the tests that is long enough")
QUICK = Timeouts(
    connect_seconds=30, look_seconds=0.05, drain_seconds=0.2, rejoin_seconds=5, gather_seconds=90, leave_seconds=20
)


@pytest.fixture
def serve(tmp_path):
    """Starts servers over fake cores; they are closed at the end."""
    servers = []

    def start(workers=1, name="store", timeouts=QUICK, credentials=KEY, **settings):
        wanted = ServerSettings(stores=(tmp_path / name,), workers=workers, **{"listen": "127.0.0.1:0"} | settings)
        servers.append(NetworkServer(wanted, credentials, timeouts, start_core=FakeCore, plan=star))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def join(server, rank=0, workers=1, credentials=KEY, timeouts=QUICK):
    return RemoteSession(server.url, rank, workers, credentials, timeouts, {"tcp": FakeLink})


def train(session, steps=3, manifest=None):
    worker = NumpyWorker(session, manifest or small_manifest())
    assert all(worker.step() for _ in range(steps))
    return worker


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


def together(server, workers, work):
    """Run `work(session)` for each worker in a thread of its own; its results or errors, by rank."""

    def one(rank):
        try:
            with join(server, rank, workers) as session:
                return work(session)
        except LuwuError as error:
            return error

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(workers)))


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


def test_workers_begin_together_and_each_set_of_them_resumes(serve):
    server = serve(workers=3)
    for expected in (2, 4):
        results = together(server, 3, lambda session: (train(session, 2), session.step)[1])
        assert results == [expected] * 3


@pytest.fixture
def interrupt_handler():
    """Python's own handler of Ctrl-C, which a process that a shell has put into the background starts without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (Credentials(b"another key that is long enough"), "the job key is not the server's"),
        (Credentials(), "asks for a job key, none was given"),
    ],
)
def test_nobody_joins_without_the_key(serve, caplog, own, words):
    server = serve()
    with pytest.raises(AuthenticationError, match=words):
        join(server, credentials=own)
    assert server.refused == 1
    assert "refused worker 0 of 1" in caplog.text and "refused=1" in caplog.text
    with join(server) as session:
        train(session)


def test_a_server_that_does_not_know_the_key_is_found_out(serve, monkeypatch):
    server = serve()
    monkeypatch.setattr(Gate, "check", lambda *_: b"something else")
    with pytest.raises(AuthenticationError, match="does not know the job key"):
        join(server)


def test_a_proof_is_good_for_one_join_of_one_rank(serve):
    server = serve(workers=2)
    stub = control.control_pb2_grpc.ControlStub(grpc.insecure_channel(server.url.removeprefix("luwu://")))
    own = b"n" * 32
    hello = stub.Hello(pb.HelloRequest(protocol_version=PROTOCOL_VERSION, nonce=own))
    proof = KEY.prove_participant(own, hello.nonce, "worker 0 of 2")
    with pytest.raises(grpc.RpcError, match="not the server's"):
        stub.JoinWorker(pb.JoinWorkerRequest(nonce=hello.nonce, proof=proof, rank=1, workers=2))
    right = pb.JoinWorkerRequest(nonce=hello.nonce, proof=proof, rank=0, workers=2)
    assert stub.JoinWorker(right).session
    with pytest.raises(grpc.RpcError, match="unknown, used or too old"):
        stub.JoinWorker(right)


@pytest.mark.parametrize("method", ["Attach", "Begin", "Commit", "Leave", "SetSegments", "Report", "Initialised"])
def test_no_call_goes_through_without_a_token(serve, method):
    stub = control.control_pb2_grpc.ControlStub(grpc.insecure_channel(serve().url.removeprefix("luwu://")))
    request = getattr(pb, f"{method}Request")()
    for metadata in ((), (("luwu-session", "00" * 32),), (("luwu-session", "no hex"),)):
        with pytest.raises(grpc.RpcError) as caught:
            getattr(stub, method)(request, metadata=metadata)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_another_protocol_version_is_refused_by_name(serve, monkeypatch):
    server = serve()
    monkeypatch.setattr(control, "PROTOCOL_VERSION", 7)
    with pytest.raises(ConfigError, match="protocol version: expected 4, found 7"):
        join(server)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (small_manifest(elements=6000), r"h\.0\.weight.*6000.*5000"),
        (small_manifest(dtype="bfloat16"), "dtype: expected bfloat16, found float32"),
        (small_manifest(chunk_elements=4096), "chunk size: expected 4096 elements, found 2048"),
    ],
)
def test_another_model_is_refused_by_what_differs(serve, other, words):
    server = serve()
    with join(server) as session:
        train(session)
    with pytest.raises(ManifestMismatchError, match=words):
        with join(server) as session:
            session.attach(other)
    with join(server) as session:
        assert train(session).session.step == 6


def test_workers_of_different_models_are_told_so(serve):
    server = serve(workers=2)

    def work(session):
        session.attach(small_manifest(elements=5000 + 100 * session.rank))

    errors = together(server, 2, work)
    assert {type(error) for error in errors} == {ManifestMismatchError}
    assert all("h.0.weight" in str(error) for error in errors)


def one_step(session):
    train(session, steps=1)
    return session.workers


def test_a_run_has_as_many_workers_as_its_first_one_says(serve):
    server = serve(workers=3, min_workers=1)
    for workers in (2, 1, 3):
        assert together(server, workers, one_step) == [workers] * workers
    with pytest.raises(ConfigError, match="this server was started for 1 to 3 workers"):
        join(server, 0, 4)
    with join(server, 0, 2), pytest.raises(ConfigError, match="this run has 2 workers, as its first one said"):
        join(server, 0, 3)


def test_ranks_and_numbers_of_workers_must_fit(serve):
    server = serve(workers=2)
    with pytest.raises(ConfigError, match="started for 2 workers"):
        join(server, 0, 3)
    first = join(server, 0, 2)
    with pytest.raises(ConfigError, match="worker 0 has joined already"):
        join(server, 0, 2)
    first.close()


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
    with pytest.raises(ServerError, match="the server was stopped; the store stands at step 3"):
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
        with pytest.raises(ServerError, match="the server was stopped"):
            worker.step()


def test_nobody_listens(serve):
    server = serve()
    url = server.url
    server.close()
    quick = QUICK.model_copy(update={"connect_seconds": 0.5})
    with pytest.raises(
        ServerError, match=rf"no server answered at {url} within 0\.5 s \(the connection was refused: no "
    ):
        RemoteSession(url, 0, 1, KEY, quick)
    with pytest.raises(ServerError, match=rf"^{url} refused the connection: no server listens there; start it"):
        check_health(url, KEY)


def test_a_health_check_of_another_program_says_what_was_expected():
    def answer():
        with suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    connection.recv(1 << 10)
                    connection.sendall(b"SSH-2.0-another program\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=answer)
        other.start()
        with pytest.raises(ServerError, match="expected a luwu server without TLS, found a port that answers"):
            check_health(f"luwu://127.0.0.1:{listener.getsockname()[1]}", KEY)
        listener.shutdown(socket.SHUT_RDWR)
        other.join()


def test_one_store_has_one_server(serve):
    serve()
    with pytest.raises(StoreLockedError, match=r"the store .* is in use by process"):
        serve()


def test_a_busy_port_of_the_data_plane_is_noticed_at_the_start(serve):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServerError, match=f"127.0.0.1:{port}: Address already in use; choose another --data-port"):
            serve(data_port=port)
    serve(data_port=port)


def test_one_port_has_one_server(serve):
    port = serve().port
    with pytest.raises(ServerError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use; choose"):
        serve(name="another", listen=f"127.0.0.1:{port}")


def test_a_server_without_key_or_certificates_does_not_start(serve):
    with pytest.raises(ConfigError, match="openssl rand"):
        serve(credentials=Credentials())


def test_a_worker_that_does_not_watch_gives_its_place_up_and_fails_nobody(serve):
    server = serve(workers=2, timeouts=QUICK.model_copy(update={"watch_seconds": 0.5}))
    run = server._runs.run
    silent = server._runs.join_worker(1, 2, "nobody")  # its process ended before it had the answer
    with join(server, 0, 2) as first, join(server, 1, 2) as second:  # waits until the server is sure
        assert silent.ended and silent.events.get(timeout=60) is None
        assert server._runs.run is run
        with ThreadPoolExecutor(2) as pool:
            for training in [pool.submit(train, session) for session in (first, second)]:
                training.result(60)


def test_a_rank_whose_worker_watches_is_taken(serve):
    server = serve(workers=2)
    with join(server, 1, 2), pytest.raises(ConfigError, match="worker 1 has joined already"):
        join(server, 1, 2)


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


def hang_on(server, monkeypatch, switch):
    """Give a switch a place in the tree of every run."""

    def plan(ready):
        places = dict(star(ready))
        return places | {switch: pb.Topology(job=ready.job, workers=ready.workers)}

    monkeypatch.setattr(server._runs, "_plan", plan)


def make_switch(name="switch a", port=9):
    return SwitchMember(name=name, peer="here", address="", port=port, fan_in=8, payload_bytes=1408, parent="")


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
    assert list(server._runs._switches.values()) == [second]
    with pytest.raises(WorkerLostError, match="switch a was started again at the same place"):
        server._runs.participants.find(first.token)


def test_a_switch_that_the_run_does_not_need_may_go(serve, monkeypatch):
    server = serve(workers=1, timeouts=Timeouts(**QUICK.model_dump() | {"switch_return_seconds": 0.01}))
    with join(server) as session:
        worker = train(session)
        spare = make_switch()
        server._runs.join_switch(spare)
        server._runs._end(spare)
        while server._runs._lost_switches:  # nothing tells when the server has looked
            assert worker.step()
        assert worker.step()


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


def test_a_server_that_was_started_a_moment_ago_is_not_taken_for_a_stranger(serve, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    probes = []

    def answer_otherwise(client):
        probes.append(None)
        if len(probes) == control.REFUSALS:  # what gRPC says from now on is older than the server
            serve(listen=f"127.0.0.1:{port}")
        return Answer.OTHER

    monkeypatch.setattr(control.ControlClient, "_probe", answer_otherwise)
    patient = Timeouts(**QUICK.model_dump() | {"connect_seconds": 20})
    with RemoteSession(f"luwu://127.0.0.1:{port}", 0, 1, KEY, patient, {"tcp": FakeLink}) as session:
        train(session)


def test_a_server_that_is_slow_to_answer_is_not_taken_for_a_stranger(serve):
    """A port is silent for longer than a stranger gets: a busy machine, or a server that was stopped for a while."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    hasty = {"retry_seconds": 0.05, "refused_seconds": 0.3, "connect_seconds": 30}  # judges after eight connections

    def answer_at_last():
        with ExitStack() as silent:
            for _ in range(12):
                silent.enter_context(listener.accept()[0])
            listener.close()
        serve(listen=f"127.0.0.1:{port}")

    late = threading.Thread(target=answer_at_last)
    late.start()
    patient = Timeouts(**QUICK.model_dump() | hasty)
    with RemoteSession(f"luwu://127.0.0.1:{port}", 0, 1, KEY, patient, {"tcp": FakeLink}) as session:
        train(session)
    late.join()


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", AuthenticationError, "does not answer as a luwu server"),
        (b"", ServerError, r"within 2 s \(connections were closed without an answer\)"),
    ],
)
def test_bytes_of_another_program_are_told_at_once_and_closed_connections_at_the_end(answer, error, message):
    """A server's door closes connections without a byte, too, where a stranger on this address opens many."""

    def serve_others():
        with suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    connection.recv(1 << 10)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=serve_others)
        other.start()
        hasty = Timeouts(**QUICK.model_dump() | {"retry_seconds": 0.05, "refused_seconds": 0.1, "connect_seconds": 2})
        with pytest.raises(error, match=message):
            RemoteSession(f"luwu://127.0.0.1:{listener.getsockname()[1]}", 0, 1, KEY, hasty, {"tcp": FakeLink})
        listener.shutdown(socket.SHUT_RDWR)
        other.join()
