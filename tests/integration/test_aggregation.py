"""The median and the trimmed mean of workers' gradients have the bits of one worker that pushes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.udp import in_threads, local_server, remote, udp_server

from harness.stored import contents
from luwu.control import control_pb2 as pb
from luwu.errors import ConfigError
from luwu.session.session import Session
from luwu.store.run_record import Claim, RunRecord

STEPS = 3
NONSENSE = {"huge": 1e30, "not a number": np.nan, "infinite": np.inf, "negative": -1e30}


class Sender(NumpyWorker):
    """A worker whose gradients a function makes of a block's values and the worker's rank."""

    make: Callable[[np.ndarray, int], np.ndarray]

    def gradient(self, values: np.ndarray) -> np.ndarray:
        return self.make(values, self.session.rank).astype(np.float32)


def honest(values: np.ndarray, rank: int) -> np.ndarray:
    return np.cos(values * 3 + rank)


def with_nonsense(value: float) -> Callable[[np.ndarray, int], np.ndarray]:
    """Worker 1 sends this value."""
    return lambda values, rank: np.full_like(values, value) if rank == 1 else honest(values, rank)


def aggregated(make: Callable[[np.ndarray, int], np.ndarray], workers: int, trims: int) -> Callable[..., np.ndarray]:
    """Return a function that makes the average of the values in the middle, for one worker that pushes it."""

    def of(values: np.ndarray, rank: int) -> np.ndarray:
        sent = np.stack([make(values, other).astype(np.float32) for other in range(workers)])
        kept = np.sort(np.where(np.isnan(sent), np.inf, sent), axis=0)[trims : workers - trims]
        total = kept[0]
        for row in kept[1:]:
            total = total + row
        return total * np.float32(1 / len(kept))

    return of


def planes(store: Path) -> list[np.ndarray]:
    """Return the parameters and the states of all blocks, float32."""
    return [plane.view(np.float32) for plane in contents(store)]


def train(
    join: Callable[[int], Session], workers: int, make: Callable[..., np.ndarray], max_norm: float | None
) -> None:
    def work(rank: int) -> None:
        with join(rank) as session:
            worker = Sender(session, small_manifest())
            worker.make, worker.max_grad_norm = make, max_norm
            for _ in range(STEPS):
                assert worker.step()

    in_threads(workers, work)


@contextmanager
def serve(transport: str, folder: Path, workers: int, aggregate: str = "mean") -> Iterator[Callable[[int], Session]]:
    if transport == "shared memory":
        with local_server(folder, workers, aggregate=aggregate) as join:
            yield join
        return
    with udp_server(folder / "store", workers, transport="tcp", aggregate=aggregate) as server:
        yield remote(server.url, workers)


@pytest.mark.parametrize("max_norm", [None, 0.5, 1e9], ids=["plain", "clipped", "not clipped"])
@pytest.mark.parametrize("transport", ["shared memory", "tcp"])
@pytest.mark.parametrize("nonsense", NONSENSE)
def test_the_median_of_three_workers_is_that_of_the_honest_ones(
    nonsense: str, transport: str, max_norm: float | None, tmp_path: Path
) -> None:
    make = with_nonsense(NONSENSE[nonsense])
    with serve(transport, tmp_path / "many", 3, "median") as join:
        train(join, 3, make, max_norm)
    with serve(transport, tmp_path / "one", 1) as join:
        train(join, 1, aggregated(make, 3, 1), max_norm)
    for many, one in zip(planes(tmp_path / "many/store"), planes(tmp_path / "one/store"), strict=True):
        if max_norm == 0.5:  # the squares are added up in other pieces
            assert np.allclose(many, one, rtol=1e-5, atol=1e-7)
        else:
            assert np.array_equal(many, one)


def test_a_trimmed_mean_of_five_workers(tmp_path: Path) -> None:
    make = with_nonsense(1e30)
    with serve("tcp", tmp_path / "many", 5, "trimmed") as join:
        train(join, 5, make, None)
    with serve("tcp", tmp_path / "one", 1) as join:
        train(join, 1, aggregated(make, 5, 1), None)
    for many, one in zip(planes(tmp_path / "many/store"), planes(tmp_path / "one/store"), strict=True):
        assert np.allclose(many, one, rtol=1e-4, atol=1e-6)


def test_with_the_mean_one_worker_spoils_the_step_of_all(tmp_path: Path) -> None:
    """The control: the same nonsense, and nothing that leaves it out."""

    def work(rank: int) -> bool:
        with join(rank) as session:
            worker = Sender(session, small_manifest())
            worker.make = with_nonsense(np.nan)
            return worker.step()

    with serve("tcp", tmp_path, 3) as join:
        assert in_threads(3, work) == [False] * 3


def test_workers_of_uneven_shares_are_refused(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        with join(rank) as session:
            NumpyWorker(session, small_manifest())
            assert session.aggregate == "median"
            with pytest.raises(ConfigError, match="equal shares of the batch for median, found shares by speed"):
                session._divide(pb.DivideRequest(attempt=0, rows=16))

    with serve("tcp", tmp_path, 3, "median") as join:
        in_threads(3, work)


@pytest.mark.parametrize("later", ["mean", "trimmed", "median"])
def test_a_run_of_luwu_train_keeps_the_average_that_its_server_had(tmp_path: Path, later: str) -> None:
    """A server that comes back, or a standby that takes over, may have been started with another."""

    def work(rank: int) -> bool:
        with join(rank) as session:
            session.claim = Claim(RunRecord("one", "/runs/one", settings={"run.aggregate": "mean"}))
            return NumpyWorker(session, small_manifest()).step()

    with serve("tcp", tmp_path, 3, "median") as join:
        assert in_threads(3, work) == [True] * 3
    with serve("tcp", tmp_path, 3, later) as join:
        if later == "median":
            assert in_threads(3, work) == [True] * 3
        else:
            with pytest.raises(
                ConfigError,
                match=rf"\(median there, {later} here\); give .*start luwu server.* with --aggregate .median",
            ):
                in_threads(3, work)
