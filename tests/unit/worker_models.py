"""Training of small models with plain torch and over a fake session side by side."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from tests.unit.fake_session import FakeSession
from torch import Tensor, nn

import luwu
from harness.small_models import loss_of
from luwu.optim.adamw import AdamW
from luwu.session.session import Session
from luwu.worker.parallelize import full_state_dict, parallelize


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Iterable[int],
    loss: Callable[[nn.Module, int], Tensor] = loss_of,
) -> list[float]:
    losses = []
    for step in steps:
        torch.manual_seed(step)
        value = loss(model, step)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


def plain_adamw(model: nn.Module, **settings) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=False, **settings)


def assert_same_training(
    model: nn.Module,
    loss: Callable[[nn.Module, int], Tensor] = loss_of,
    *,
    steps: int = 4,
    session: FakeSession | None = None,
    tolerance: float = 1e-6,
    **options,
) -> nn.Module:
    """Train a copy with plain torch, zero gradients for unused parameters as here; losses and parameters must agree."""
    peer = copy.deepcopy(model)
    peer_optimizer = plain_adamw(peer, lr=1e-2)
    peer_losses = []
    for step in range(steps):
        torch.manual_seed(step)
        value = loss(peer, step)
        value.backward()
        for parameter in peer.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        peer_optimizer.step()
        peer_optimizer.zero_grad()
        peer_losses.append(value.item())
    session = session or FakeSession()
    parallelize(model, session, **options)
    losses = train(model, AdamW(model, lr=1e-2), range(steps), loss)
    assert losses == peer_losses or torch.allclose(torch.tensor(losses), torch.tensor(peer_losses), rtol=tolerance)
    assert_same_state(full_state_dict(model), peer.state_dict(), tolerance)
    assert session.endpoint.held == set()
    assert session.step == steps
    return peer


def run_workers(folder: Path, work: Callable[[Session], None], workers: int = 2) -> None:
    """Run ``work`` in a thread for each of several workers of one real server."""
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with luwu.open(folder, memory="64MiB", rank=rank, workers=workers) as session:
                work(session)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def assert_same_state(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
        )


def assert_absent(model: nn.Module) -> None:
    """Every parameter reads NaN and takes the memory of one element."""
    for name, parameter in model.named_parameters():
        assert bool(torch.isnan(parameter).all()), name
        assert parameter.untyped_storage().nbytes() == parameter.element_size(), name
