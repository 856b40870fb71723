"""Models of transformers and peft over a real server: two workers against plain torch, and what frozen blocks cost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import luwu
from harness.model_families import batch, make, on_meta
from luwu.server.server import LocalServer
from luwu.session.local import join

ROWS, STEPS = 4, 4


def adapted(model: nn.Module) -> nn.Module:
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


def train_two(folder: Path, family: str, *, adapters: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Two workers, from meta, each with half of every batch: mean losses, and where they started."""
    losses: dict[int, list[float]] = {}
    first: dict[str, torch.Tensor] = {}
    failures: list[BaseException] = []

    def work(rank: int, socket: Path) -> None:
        try:
            model = on_meta(family).train()
            if adapters:
                with torch.device("meta"):
                    model = adapted(model)
            with join(socket, rank, 2) as session:
                luwu.parallelize(model, session, seed=5)
                if rank == 0:
                    first.update(luwu.full_state_dict(model))
                optimizer = luwu.AdamW(model, lr=1e-2)
                losses[rank] = []
                for step in range(STEPS):
                    half = {name: value[2 * rank : 2 * rank + 2] for name, value in batch(family, step, ROWS).items()}
                    loss = model(**half).loss
                    loss.backward()
                    optimizer.step()
                    losses[rank].append(loss.item())
        except BaseException as error:
            failures.append(error)
            raise

    with LocalServer(folder, [], 64 << 20, 2) as server:
        threads = [threading.Thread(target=work, args=(rank, server.socket_path)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures
    return [(left + right) / 2 for left, right in zip(losses[0], losses[1], strict=True)], first


@pytest.mark.parametrize(("family", "adapters"), [("llama", False), ("llama", True), ("t5", False), ("vit", False)])
def test_two_workers_from_meta_train_as_one_process_of_torch(tmp_path, family, adapters):
    losses, first = train_two(tmp_path, family, adapters=adapters)
    twin = make(family).train()
    twin = adapted(twin) if adapters else twin
    twin.load_state_dict(first)
    optimizer = torch.optim.AdamW([each for each in twin.parameters() if each.requires_grad], lr=1e-2)
    expected = []
    for step in range(STEPS):
        loss = twin(**batch(family, step, ROWS)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-5)


def test_frozen_parameters_take_their_size_once_and_are_never_pushed(tmp_path):
    torch.manual_seed(0)
    model = adapted(make("llama", width=256)).train()
    sizes = {True: 0, False: 0}
    for parameter in model.parameters():
        sizes[parameter.requires_grad] += parameter.numel()
    with luwu.open(tmp_path, memory="64MiB") as session:
        luwu.parallelize(model, session, dtype=torch.bfloat16)
        optimizer = luwu.AdamW(model, lr=1e-2)
        for step in range(2):
            model(**batch("llama", step)).loss.backward()
            optimizer.step()
        assert session.server is not None
        assert session.server.stats()["bytes_pushed"] == 2 * 2 * sizes[True]
    stored = sum(path.stat().st_size for path in (tmp_path / "store").glob("*.luwu"))
    adapters_bytes = 3 * (2 * (2 + 3 * 4) * sizes[True] // 3 + 2 * 5 * 4096)  # of each layer, twice, up to whole pages
    assert 2 * sizes[False] < stored < 2.1 * sizes[False] + adapters_bytes
