"""Several servers with a share each of one model, against one that has all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.network import ServerProcess
from tests.integration.udp import in_threads, local_server, remote, train, udp_server, udp_switch

from harness.stored import contents
from luwu.control import control_pb2 as pb
from luwu.core.division import divide
from luwu.errors import LuwuError, ManifestMismatchError, ServerError, WorkerLostError
from luwu.server.network import NetworkServer
from luwu.store.opening import open_reader

WORKERS = 2
TRANSPORTS = [("tcp", 0), ("udp", 0), ("udp", 1)]


@contextmanager
def servers(
    folder: Path, count: int, transport: str = "tcp", switches: int = 0, durable: str = "step"
) -> Iterator[list[NetworkServer]]:
    """Servers over stores of their own, each with switches of its own."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            store = folder / f"store-{number}"
            wanted = {"transport": transport, "switches": switches, "durable": durable}
            server = stack.enter_context(udp_server(store, WORKERS, **wanted))
            for switch in range(switches):
                stack.enter_context(udp_switch(server.url, f"s{switch}"))
            found.append(server)
        yield found


def url_of(*named: NetworkServer | ServerProcess) -> str:
    return "luwu://" + ",".join(server.url.removeprefix("luwu://") for server in named)


def parts_of(store: Path, count: int) -> list[list[np.ndarray]]:
    """Return the parts that each of ``count`` servers would hold of this store."""
    held = contents(store)
    manifest = small_manifest()
    planes = len(held) // len(manifest.blocks)
    parts: list[list[np.ndarray]] = [[] for _ in range(count)]
    for number, pieces in enumerate(divide(manifest, count).pieces):
        for piece in pieces:
            for plane in held[planes * number : planes * (number + 1)]:
                size = plane.nbytes // manifest.blocks[number].elements // plane.itemsize
                parts[piece.server].append(plane[size * piece.first : size * (piece.first + piece.elements)])
    return parts


def same_as_one(folder: Path, count: int, one: Path) -> bool:
    return all(
        len(part) == len(found) and all(np.array_equal(a, b) for a, b in zip(part, found, strict=True))
        for part, found in zip(
            parts_of(one, count), (contents(folder / f"store-{i}") for i in range(count)), strict=True
        )
    )


def train_on_one(run: Path, work: Callable[[NumpyWorker], Any], optimizer: str = "adamw") -> Path:
    with local_server(run, WORKERS) as joined:
        train(joined, WORKERS, work, coarse=True, optimizer=optimizer)
    return run / "store"


def some_steps(worker: NumpyWorker) -> None:
    """Good ones, one with a bad gradient at one server alone, and one that a worker gives up."""
    assert worker.step()
    assert worker.step()
    assert not worker.step(spoil_only=2)
    assert worker.step()
    if worker.session.rank == 0:
        worker.give_up(2)
    else:
        assert not worker.step()
    assert worker.step()


@pytest.mark.parametrize(("transport", "switches"), TRANSPORTS)
@pytest.mark.parametrize("count", [2, 3])
def test_the_same_bits_as_one_server(tmp_path: Path, transport: str, switches: int, count: int) -> None:
    one = train_on_one(tmp_path / "one", some_steps)
    with servers(tmp_path, count, transport, switches) as named:
        train(remote(url_of(*named), WORKERS), WORKERS, some_steps, coarse=True)
    assert same_as_one(tmp_path, count, one)
    for number in range(count):
        reader, _ = open_reader([tmp_path / f"store-{number}"])
        assert (reader.step, reader.attempts, reader.rolled_back) == (4, 6, 2)


@pytest.mark.parametrize(("transport", "switches"), TRANSPORTS)
@pytest.mark.parametrize("count", [1, 2])
def test_bytes_are_the_blocks_and_waiting_is_part_of_the_time(
    tmp_path: Path, transport: str, switches: int, count: int
) -> None:
    """It holds at the end of each step, also of a rolled-back one, for every transport and number of servers."""
    nbytes = 4 * sum(block.elements for block in small_manifest().blocks)

    def look(worker: NumpyWorker) -> None:
        began, first = time.monotonic(), worker.endpoint.stats()
        for number, spoil in enumerate((False, True, False), start=1):
            assert worker.step(spoil=spoil) is not spoil
            found = worker.endpoint.stats()
            moved = {name: found[name] - first[name] for name in found}
            assert (moved["bytes_pulled"], moved["bytes_pushed"]) == (number * nbytes, number * nbytes)
            assert 0 < moved["wait_seconds"] <= moved["busy_seconds"] <= time.monotonic() - began

    with servers(tmp_path, count, transport, switches) as named:
        train(remote(url_of(*named), WORKERS), WORKERS, look, coarse=True)


@pytest.mark.parametrize("optimizer", ["lion", "adamw8bit"])
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_every_optimizer_has_the_same_bits_over_servers(tmp_path: Path, transport: str, optimizer: str) -> None:
    one = train_on_one(tmp_path / "one", some_steps, optimizer)
    with servers(tmp_path, 2, transport) as named:
        train(remote(url_of(*named), WORKERS), WORKERS, some_steps, coarse=True, optimizer=optimizer)
    assert same_as_one(tmp_path, 2, one)


def test_one_set_of_workers_after_another(tmp_path: Path) -> None:
    def two_steps(worker: NumpyWorker) -> int:
        before = worker.session.step
        assert worker.step()
        assert worker.step()
        return before

    one = train_on_one(tmp_path / "one", lambda worker: [worker.step() for _ in range(4)])
    with servers(tmp_path, 2) as named:
        for before in (0, 2):
            assert train(remote(url_of(*named), WORKERS), WORKERS, two_steps, coarse=True) == [before] * WORKERS
    assert same_as_one(tmp_path, 2, one)


class LostError(Exception):
    """A worker that ends between the votes and the last commit."""


def lose_a_step(worker: NumpyWorker, committing: int) -> None:
    """A step that one of the two servers commits before everybody is lost."""

    def decide(replies: Sequence[pb.CommitReply]) -> bool:
        assert [reply.end for reply in replies] == [pb.PREPARED] * 2
        squares = sum(reply.squares for reply in replies) if worker.max_grad_norm is not None else None
        request = pb.DecideRequest(commits=True, squares=squares, attempt=worker.session.attempts)
        worker.endpoint._controls[committing].call("Decide", request, patient=True)
        raise LostError

    worker.endpoint._decide = decide
    worker.step()


@pytest.mark.parametrize(("transport", "switches"), TRANSPORTS)
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_server_that_is_one_commit_ahead_goes_back(tmp_path: Path, transport: str, switches: int, ahead: int) -> None:
    """The commit is lost for good: it has been overwritten when the next loss finds the other server ahead."""
    one = train_on_one(tmp_path / "one", lambda worker: [worker.step() for _ in range(5)])

    def three_steps_and_a_loss(worker: NumpyWorker) -> None:
        while worker.session.step < 3:
            assert worker.step()
        lose_a_step(worker, ahead)

    def another_loss(worker: NumpyWorker) -> None:
        assert worker.session.step == 3
        lose_a_step(worker, 1 - ahead)

    def two_steps(worker: NumpyWorker) -> None:
        assert worker.session.step == 3
        assert worker.step()
        assert worker.step()

    for work in (three_steps_and_a_loss, another_loss):
        with servers(tmp_path, 2, transport, switches) as named, pytest.raises((LostError, LuwuError)):
            train(remote(url_of(*named), WORKERS), WORKERS, work, coarse=True)
    with servers(tmp_path, 2, transport, switches) as named:
        train(remote(url_of(*named), WORKERS), WORKERS, two_steps, coarse=True)
    assert same_as_one(tmp_path, 2, one)


def test_a_server_that_was_lost_before_it_had_values_gets_them(tmp_path: Path) -> None:
    one = train_on_one(tmp_path / "one", lambda worker: worker.step())
    with servers(tmp_path, 2) as named:
        train(remote(url_of(*named), WORKERS), WORKERS, lambda worker: worker.fresh, coarse=True)
    for file in (tmp_path / "store-1").iterdir():
        file.unlink()
    with servers(tmp_path, 2) as named:
        fresh = train(
            remote(url_of(*named), WORKERS), WORKERS, lambda worker: (worker.step(), worker.fresh)[1], coarse=True
        )
        assert fresh == [True, False]
    assert same_as_one(tmp_path, 2, one)


def refusal(url: str) -> str:
    found = []

    def ask(rank: int) -> None:
        with suppress(WorkerLostError):  # the other one has been refused, and is gone, before this one asked
            try:
                with remote(url, WORKERS)(rank) as session:
                    NumpyWorker(session, small_manifest()).step()
            except ManifestMismatchError as error:
                found.append(str(error))

    in_threads(WORKERS, ask)
    return found[0]


def test_servers_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with servers(tmp_path, 2) as named, servers(tmp_path / "others", 2) as others:
        for job in (named, others):
            train(remote(url_of(*job), WORKERS), WORKERS, lambda worker: worker.step())
        first, second = named
        assert "name the same servers in the same order" in refusal(url_of(second, first))
        assert "name the same servers in the same order" in refusal(url_of(first, others[1]))
        assert "is that of one of several servers, and this one was named alone" in refusal(first.url)
        assert "is not part 3 of 3" in refusal(url_of(first, second, others[0]))
        train(remote(url_of(*named), WORKERS), WORKERS, lambda worker: worker.step())
        assert step_of(url_of(*named)) == 2


@pytest.mark.parametrize("victim", [0, 1])
def test_a_server_that_is_killed_ends_the_run_and_the_next_one_resumes(tmp_path: Path, victim: int) -> None:
    def until_it_ends(worker: NumpyWorker) -> None:
        while worker.session.step < 3:
            assert worker.step()
        if worker.session.rank == 0:
            named[victim].process.kill()
        while True:
            worker.step()

    with ServerProcess(tmp_path / "store-0", WORKERS) as first, ServerProcess(tmp_path / "store-1", WORKERS) as second:
        named = (first, second)
        with pytest.raises(ServerError, match=named[victim].url):
            train(remote(url_of(*named), WORKERS), WORKERS, until_it_ends, coarse=True)
        assert named[1 - victim].stop() == 0
    with servers(tmp_path, 2) as started:
        reached = step_of(url_of(*started))
        assert reached >= 3
        train(remote(url_of(*started), WORKERS), WORKERS, lambda worker: worker.step(), coarse=True)
    one = train_on_one(tmp_path / "one", lambda worker: [worker.step() for _ in range(reached + 1)])
    assert same_as_one(tmp_path, 2, one)


def step_of(url: str) -> int:
    """Return the step at which a run would go on."""
    steps = train(remote(url, WORKERS), WORKERS, lambda worker: worker.session.step)
    assert steps == [steps[0]] * WORKERS
    return steps[0]
