"""Embeddings and heads as blocks of their own, over every transport; stores from before keep their blocks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from tests.integration.udp import in_threads, remote, udp_server
from tests.unit.test_worker_outer import ByName, Twice, Wide, wide
from torch import Tensor

import luwu
from harness.small_models import loss_of
from luwu.store.folders import read_identity
from luwu.worker import layout as module
from luwu.worker.layout import lay_out

WORKERS = 2
BLOCKS_BEFORE = {"<root>", "h.0", "h.1", "h.2"}


def train(
    stores: list[Path], transport: str, kind: type[Wide] = Wide, steps: int = 3, first: int = 0
) -> tuple[list[float], dict[str, Tensor]]:
    """The losses of rank 0 and the values at the end."""
    models = [wide(kind) for _ in range(WORKERS)]  # here, because torch has one generator for all threads
    with ExitStack() as stack:
        servers = [stack.enter_context(udp_server(store, WORKERS, transport=transport)) for store in stores]
        joined = remote("luwu://" + ",".join(server.url.removeprefix("luwu://") for server in servers), WORKERS)

        def work(rank: int) -> tuple[list[float], dict[str, Tensor]]:
            losses = []
            with joined(rank) as session:
                model = luwu.parallelize(models[rank], session)
                optimizer = luwu.AdamW(model, lr=1e-2)
                for step in range(first, first + steps):
                    loss = loss_of(model, WORKERS * step + rank)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                return losses, luwu.full_state_dict(model)

        return in_threads(WORKERS, work)[0]


def blocks_of(store: Path) -> list[str]:
    identity = read_identity(store)
    assert identity is not None
    return [block.name for block in identity.manifest.blocks]


def use_layout(monkeypatch: pytest.MonkeyPatch, outer: bool) -> None:
    monkeypatch.setattr(module, "lay_out", lambda *args, **settings: lay_out(*args, outer=outer))


@pytest.mark.parametrize(("transport", "count"), [("tcp", 1), ("udp", 1), ("tcp", 2)])
def test_a_store_from_before_keeps_its_blocks(tmp_path: Path, monkeypatch, transport: str, count: int) -> None:
    stores = [tmp_path / f"store-{number}" for number in range(count)]
    with monkeypatch.context() as patched:
        use_layout(patched, outer=False)
        _, before = train(stores, transport)
    for store in stores:  # of several, each has a part
        assert set(blocks_of(store)) <= BLOCKS_BEFORE
    losses, after = train(stores, transport, first=3)
    assert all(loss == loss for loss in losses)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    for store in stores:  # of several, each has a part
        assert set(blocks_of(store)) <= BLOCKS_BEFORE


@pytest.mark.parametrize("kind", [Wide, ByName, Twice])
def test_training_is_the_same_to_the_bit_as_with_the_whole_root(tmp_path: Path, monkeypatch, kind: type[Wide]) -> None:
    found = {}
    for outer in (True, False):
        with monkeypatch.context() as patched:
            use_layout(patched, outer)
            found[outer] = train([tmp_path / str(outer)], "tcp", kind)
    assert found[True][0] == found[False][0]
    assert all(torch.equal(value, found[False][1][name]) for name, value in found[True][1].items())


@pytest.mark.parametrize("kind", [Wide, ByName, Twice])
def test_all_workers_pull_and_push_in_one_order_over_udp(tmp_path: Path, kind: type[Wide]) -> None:
    losses, values = train([tmp_path / "store"], "udp", kind, steps=5)
    assert all(loss == loss for loss in losses)
    assert not any(bool(torch.isnan(value).any()) for value in values.values())
