"""Small models, and training them with plain torch and over a fake session side by side."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from tests.unit.fake_session import FakeSession
from torch import Tensor, nn

import luwu
from luwu.optim.adamw import AdamW
from luwu.session.session import Session
from luwu.worker.parallelize import full_state_dict, parallelize

VOCABULARY = 19
WIDTH = 12


class Block(nn.Module):
    def __init__(self, width: int = WIDTH, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))


class Tiny(nn.Module):
    """A language model: embedding, blocks, norm, head."""

    def __init__(self, depth: int = 3, *, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.h = nn.ModuleList(Block(dropout=dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def tokens(step: int, batch: int = 4, length: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(VOCABULARY, (batch, length), generator=generator)


def loss_of(model: nn.Module, step: int) -> Tensor:
    data = tokens(step)
    return nn.functional.cross_entropy(model(data[:, :-1]).flatten(0, 1).float(), data[:, 1:].flatten())


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
