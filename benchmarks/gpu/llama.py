"""A decoder of Llama's shape in plain torch, for machines that have nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; heads of keys are as many as heads of queries."""

    layers: int
    hidden: int
    inner: int
    heads: int
    vocabulary: int = 32_000

    @property
    def block_parameters(self) -> int:
        """Parameters of a layer."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.inner + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.block_parameters + 2 * self.vocabulary * self.hidden + self.hidden


SMALL = Shape(layers=4, hidden=256, inner=704, heads=4, vocabulary=512)
LLAMA_1B = Shape(layers=24, hidden=2048, inner=5504, heads=16)
"""1.2B parameters in layers of 51M."""
LLAMA_8B = Shape(layers=32, hidden=4096, inner=14_336, heads=32, vocabulary=128_256)


class Block(nn.Module):
    """Attention and a gated feed-forward part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm = nn.RMSNorm(shape.hidden)
        self.queries_keys_values = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.inner_norm = nn.RMSNorm(shape.hidden)
        self.gate = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, tokens, hidden] to the same."""
        rows, tokens, hidden = x.shape
        split = self.queries_keys_values(self.norm(x)).view(rows, tokens, 3, self.heads, hidden // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, tokens, hidden))
        normed = self.inner_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Loss of hidden values [rows, tokens, hidden], the head's weight, and targets [rows, tokens]: a scalar in nats."""


def whole_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute all logits at once."""
    logits = functional.linear(hidden, weight)
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Llama(nn.Module):
    """Returns the loss of the next token; ``checkpoints``: recompute each layer in backward."""

    def __init__(self, shape: Shape, *, checkpoints: bool = False, loss: Loss = whole_loss) -> None:
        super().__init__()
        self.checkpoints = checkpoints
        self.loss = loss
        self.embed = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """[rows, tokens + 1] to a scalar in nats."""
        x = self.embed(text[:, :-1])
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints and self.training else layer(x)
        return self.loss(self.norm(x), self.head.weight, text[:, 1:])


class Adapted(nn.Module):
    """A frozen layer beside a product of low rank, which begins as zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        own = {"bias": False, "device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Linear(base.in_features, rank, **own)
        self.up = nn.Linear(rank, base.out_features, **own)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        return self.base(x) + self.up(self.down(x))


def adapt(model: Llama, rank: int = 8) -> Llama:
    """Freeze the model, in place, and give the layers of attention adapters."""
    model.requires_grad_(False)
    for layer in model.layers:
        layer.queries_keys_values = Adapted(layer.queries_keys_values, rank)
        layer.out = Adapted(layer.out, rank)
    return model


def texts(shape: Shape, rows: int, tokens: int, step: int, device: str) -> Tensor:
    """A batch that depends on the step alone, [rows, tokens + 1]."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(shape.vocabulary, (rows, tokens + 1), generator=generator).to(device)
