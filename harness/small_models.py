"""A language model that trains in milliseconds, its batches and its loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 19
WIDTH = 12


class Block(nn.Module):
    """A block: norm, a linear layer up, tanh, and one down, around a shortcut."""

    def __init__(self, width: int = WIDTH, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
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
        """Return logits."""
        x = self.embed(tokens)
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def tokens(step: int, batch: int = 4, length: int = 7) -> Tensor:
    """Return the tokens of a step's batch, each time the same."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(VOCABULARY, (batch, length), generator=generator)


def loss_of(model: nn.Module, step: int) -> Tensor:
    """Return the loss of a step's batch."""
    data = tokens(step)
    return nn.functional.cross_entropy(model(data[:, :-1]).flatten(0, 1).float(), data[:, 1:].flatten())
