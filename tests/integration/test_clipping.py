"""Clipping by the global norm over real servers: against torch, the same bits on every way, killed and resumed."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.integration.fabric_worker import GROUP, NumpyWorker, die_after, small_manifest
from tests.integration.test_network_servers import LostError, lose_a_step, same_as_one, servers, url_of
from tests.integration.test_sessions import equal
from tests.integration.udp import Join, local_server, remote, train, udp_tree

import luwu
from harness.small_models import Block, Tiny, loss_of
from harness.stored import contents, read_block
from luwu.errors import ConfigError, LuwuError, StepOrderError
from luwu.store.opening import open_reader

WORKERS = 2
STEPS = 6
LIMIT = 90.0
"""Some of the norms below are above it, some are not."""


def clipped(limit: float | None, steps: int = STEPS):
    """Work for `train`: make steps, and return their norms."""

    def work(worker: NumpyWorker) -> list[float | None]:
        worker.max_grad_norm = limit
        norms = []
        while worker.session.step < steps:
            assert worker.step()
            norms.append(worker.endpoint.grad_norm)
        return norms

    return work


def plain_torch(limit: float, coarse: bool = False) -> tuple[list[np.ndarray], list[float]]:
    """Parameters and norms of the same training by torch alone."""
    manifest = small_manifest()
    parameters = [
        torch.nn.Parameter(torch.from_numpy(np.sin(np.arange(block.elements, dtype=np.float32) + number)))
        for number, block in enumerate(manifest.blocks)
    ]
    lr, beta1, beta2, eps, weight_decay = GROUP
    optimizer = torch.optim.AdamW(
        parameters, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay, foreach=False
    )
    norms = []
    for step in range(STEPS):
        for parameter in parameters:
            gradients = [torch.cos(parameter.detach() * 3 + step + rank) for rank in range(WORKERS)]
            if coarse:
                gradients = [torch.round(gradient * 1024) / 1024 for gradient in gradients]
            parameter.grad = torch.stack(gradients).mean(0)
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, limit)))
        optimizer.step()
    return [parameter.detach().numpy() for parameter in parameters], norms


@contextmanager
def one_server(way: str, folder: Path) -> Iterator[Join]:
    """Joins one server: of this host, over TCP, or over UDP through a switch."""
    if way == "local":
        with local_server(folder, WORKERS) as joined:
            yield joined
        return
    settings = {"transport": "tcp"} if way == "tcp" else {}
    with udp_tree(folder / "store", WORKERS, (("s", ""),) if way == "udp" else (), **settings) as url:
        yield remote(url, WORKERS)


@pytest.mark.parametrize("way", ["local", "tcp", "udp"])
def test_parameters_and_norms_are_those_of_torch(tmp_path: Path, way: str) -> None:
    expected, expected_norms = plain_torch(LIMIT)
    assert min(expected_norms) < LIMIT < max(expected_norms)
    with one_server(way, tmp_path) as joined:
        for norms in train(joined, WORKERS, clipped(LIMIT)):
            assert norms == pytest.approx(expected_norms, rel=1e-6)
    reader, manifest = open_reader([tmp_path / "store"])
    for number in range(len(manifest.blocks)):
        values = read_block(reader, number)[0].view(np.float32)
        np.testing.assert_allclose(values, expected[number], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [LIMIT, 1.0])
def test_every_way_gives_the_same_bits_and_so_do_several_servers(tmp_path: Path, limit: float) -> None:
    found = []
    for way in ("local", "tcp", "udp"):
        with one_server(way, tmp_path / way) as joined:
            found.append(train(joined, WORKERS, clipped(limit), coarse=True))
    with servers(tmp_path, 2) as named:
        found.append(train(remote(url_of(*named), WORKERS), WORKERS, clipped(limit), coarse=True))
    assert all(norms == found[0][0] for each in found for norms in each)
    one = contents(tmp_path / "local/store")
    assert equal(one, contents(tmp_path / "tcp/store")) and equal(one, contents(tmp_path / "udp/store"))
    assert same_as_one(tmp_path, 2, tmp_path / "local/store")


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_server_that_is_one_clipped_step_ahead_goes_back(tmp_path: Path, ahead: int) -> None:
    with local_server(tmp_path / "one", WORKERS) as joined:
        train(joined, WORKERS, clipped(LIMIT), coarse=True)

    def three_steps_and_a_loss(worker: NumpyWorker) -> None:
        clipped(LIMIT, 3)(worker)
        lose_a_step(worker, ahead)

    with servers(tmp_path, 2) as named, pytest.raises((LostError, LuwuError)):
        train(remote(url_of(*named), WORKERS), WORKERS, three_steps_and_a_loss, coarse=True)
    with servers(tmp_path, 2) as named:
        train(remote(url_of(*named), WORKERS), WORKERS, clipped(LIMIT), coarse=True)
    assert same_as_one(tmp_path, 2, tmp_path / "one/store")


def test_never_clipping_has_the_bits_of_no_clipping(tmp_path: Path) -> None:
    for name, limit in (("none", None), ("never", 1e6), ("measured", float("inf"))):
        with local_server(tmp_path / name, WORKERS) as joined:
            norms = train(joined, WORKERS, clipped(limit))
        assert all((norm is None) == (limit is None) for norm in norms[0])
    assert equal(contents(tmp_path / "none/store"), contents(tmp_path / "never/store"))
    assert equal(contents(tmp_path / "none/store"), contents(tmp_path / "measured/store"))


def test_a_run_that_is_killed_goes_on_with_the_same_bits_and_tells_where_it_stands(tmp_path: Path) -> None:
    with luwu.open(tmp_path / "once", memory="1MiB") as session:
        clipped(1.0)(NumpyWorker(session, small_manifest(blocks=20)))
        assert session.server is not None
        assert session.server.stats()["clipped"] == STEPS
    for steps in (2, 4, 5):
        process = multiprocessing.get_context("spawn").Process(target=die_after, args=(tmp_path / "often", steps))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        reader, _ = open_reader([tmp_path / "often/store"])
        assert reader.step in (steps - 1, steps)  # the last one may not have been on the disk yet
        with luwu.open(tmp_path / "often", memory="1MiB") as session:
            session.attach(small_manifest(blocks=20))
            assert (session.step, session.attempts) == (reader.step, reader.step)
    with luwu.open(tmp_path / "often", memory="1MiB") as session:
        clipped(1.0)(NumpyWorker(session, small_manifest(blocks=20)))
    reader, _ = open_reader([tmp_path / "often/store"])
    assert reader.step == STEPS  # whoever closes waits for it
    assert equal(contents(tmp_path / "once/store"), contents(tmp_path / "often/store"))
    assert not list((tmp_path / "often/store").glob("scratch*"))


def test_a_run_clips_in_all_steps_or_in_none(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory="1MiB") as session:
        worker = NumpyWorker(session, small_manifest())
        worker.step()
        worker.max_grad_norm = 1.0
        with pytest.raises(StepOrderError, match="give every step one or none"):
            worker.step()


def tiny() -> Tiny:
    torch.manual_seed(0)
    return Tiny(depth=2)


def clipped_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, factor: float = 1.0) -> float:
    loss = loss_of(model, step)
    (factor * loss).backward()
    optimizer.step()
    return loss.item()


def plain_norm(model: torch.nn.Module, step: int) -> float:
    """The norm of the step's gradient by torch, at the values that the model has now."""
    twin = tiny()
    twin.load_state_dict(luwu.full_state_dict(model))
    loss_of(twin, step).backward()
    return float(torch.nn.utils.get_total_norm([parameter.grad for parameter in twin.parameters()]))


def test_states_of_eight_bits_are_clipped_as_torch_would(tmp_path: Path) -> None:
    """Against the same optimizer without clipping, given gradients that torch's norm has scaled down."""
    limit, found, expected = 0.5, [], []
    with luwu.open(tmp_path / "clipped", memory="8MiB") as session:
        model = luwu.parallelize(tiny(), session, [Block], optimizer=luwu.AdamW8bit)
        optimizer = luwu.AdamW8bit(model, lr=1e-2, max_grad_norm=limit)
        for step in range(STEPS):
            found.append((clipped_step(model, optimizer, step), optimizer.last_grad_norm))
    with luwu.open(tmp_path / "scaled", memory="8MiB") as session:
        model = luwu.parallelize(tiny(), session, [Block], optimizer=luwu.AdamW8bit)
        optimizer = luwu.AdamW8bit(model, lr=1e-2)
        for step in range(STEPS):
            norm = plain_norm(model, step)
            expected.append((clipped_step(model, optimizer, step, min(1.0, limit / (norm + 1e-6))), norm))
    assert all(norm > 1.2 * limit for _, norm in expected)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)


def test_a_run_that_is_opened_again_may_clip_otherwise(tmp_path: Path) -> None:
    """Clip by another norm, or not at all, as torch does with the same limits; within an opened run there is one."""
    limits = [0.5, 0.5, 0.25, None, None, 0.5]
    twin = tiny()
    plain = torch.optim.AdamW(twin.parameters(), lr=1e-2, foreach=False)
    expected = []
    for step, limit in enumerate(limits):
        loss = loss_of(twin, step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), limit or float("inf")).item()
        plain.step()
        plain.zero_grad()
        expected.append((loss.item(), norm if limit else None))
    found: list[tuple[float, float | None]] = []
    for first, last in ((0, 2), (2, 3), (3, 5), (5, 6)):
        with luwu.open(tmp_path, memory="8MiB") as session:
            model = luwu.parallelize(tiny(), session, [Block])
            assert session.step == first
            optimizer = luwu.AdamW(model, lr=1e-2, max_grad_norm=limits[first])
            for step in range(first, last):
                found.append((clipped_step(model, optimizer, step), optimizer.last_grad_norm))
            with pytest.raises(ConfigError, match="expected one for the model's life, found a second after"):
                luwu.AdamW(model, lr=1e-2, max_grad_norm=9.0)
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=1e-5)
    assert [norm is None for _, norm in found] == [limit is None for limit in limits]
    norms = [[norm for _, norm in each if norm is not None] for each in (found, expected)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
