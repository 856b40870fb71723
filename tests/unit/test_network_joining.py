"""A server on the network admits and refuses workers by key, protocol, model, rank and number of workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tests.integration.fabric_worker import small_manifest
from tests.unit.network_serving import KEY, QUICK, join, serve, together, train

from luwu.control import client as control
from luwu.control import control_pb2 as pb
from luwu.control.credentials import Credentials
from luwu.control.rpc import PROTOCOL_VERSION
from luwu.errors import AuthenticationError, ConfigError, ManifestMismatchError
from luwu.server.gate import Gate

__all__ = ["serve"]  # a fixture


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
    monkeypatch.setattr(control, "PROTOCOL_VERSION", 8)
    with pytest.raises(ConfigError, match="protocol version: expected 7, found 8"):
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
