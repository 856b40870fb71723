"""A small pre-norm GPT over bytes or tokens: the model that `luwu train` trains.

Every module that owns parameters has `reset_parameters`, so a model built on the meta device can be initialised one
block at a time, never whole. The scheme is GPT-2's (Radford et al., 2019): normal with deviation 0.02, projections
into the residual stream divided by sqrt(2 * layers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from luwu.models.kv_cache import KeyValueCache, LayerCache
from luwu.worker.tiled_loss import tiled_cross_entropy
from luwu.worker.watched import use_by_name

VOCABULARY = 256
"""Tokens without a tokenizer: one for each value of a byte."""

INITIAL_DEVIATION = 0.02


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. `seq` is the longest sequence in tokens; `hidden` must be a multiple of `heads`.

    Tokens are below `vocabulary`.
    """

    layers: int
    hidden: int
    heads: int
    seq: int
    dropout: float = 0.0
    vocabulary: int = VOCABULARY


class Prediction(NamedTuple):
    """Without targets `logits` [batch, tokens, vocabulary], with them the mean `loss` in nats per token."""

    logits: Tensor | None = None
    loss: Tensor | None = None


def draw(weight: Tensor, deviation: float) -> None:
    """Draw a parameter's first values from a normal distribution, unless it is on meta and has none.

    Drawing on meta would make torch load its compiler, which takes as much time as loading torch itself.
    """
    if not weight.is_meta:
        nn.init.normal_(weight, std=deviation)


class Linear(nn.Linear):
    """A bias-free linear layer that initialises itself with a given deviation."""

    def __init__(self, inputs: int, outputs: int, deviation: float) -> None:
        self.deviation = deviation
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weight from a normal distribution."""
        draw(self.weight, self.deviation)


class Embedding(nn.Embedding):
    """An embedding table that initialises itself with GPT-2's deviation."""

    def reset_parameters(self) -> None:
        """Draw the table from a normal distribution."""
        draw(self.weight, INITIAL_DEVIATION)


class Attention(nn.Module):
    """Causal self-attention over [batch, tokens, hidden]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.inputs = Linear(config.hidden, 3 * config.hidden, INITIAL_DEVIATION)
        self.output = Linear(config.hidden, config.hidden, residual_deviation(config))

    def forward(self, hidden: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Mix every token with the tokens before it, those in the cache included; the shape stays."""
        batch, tokens, width = hidden.shape
        query, key, value = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.inputs(hidden).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        before = 0 if cache is None else cache.get_seq_length()
        if cache is not None:
            key, value = cache.update(key, value)
        mask = None
        if before and tokens > 1:
            mask = torch.ones(tokens, before + tokens, dtype=torch.bool, device=hidden.device).tril(before)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=before == 0
        )
        output: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return output


class Block(nn.Module):
    """Transformer layer: attention, then a GELU network of four times the width, each behind a layer norm."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.network_norm = nn.LayerNorm(config.hidden)
        self.expand = Linear(config.hidden, 4 * config.hidden, INITIAL_DEVIATION)
        self.contract = Linear(4 * config.hidden, config.hidden, residual_deviation(config))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Add this layer's two contributions to [batch, tokens, hidden]."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), cache))
        inner = functional.gelu(self.expand(self.network_norm(hidden)))
        output: Tensor = hidden + self.dropout(self.contract(inner))
        return output


class GPT(nn.Module):
    """Language model with learned positions; the output head is the token table, so it is stored once."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = Embedding(config.vocabulary, config.hidden)
        self.positions = Embedding(config.seq, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)

    def forward(self, ids: Tensor, targets: Tensor | None = None, cache: KeyValueCache | None = None) -> Prediction:
        """Predict the next token at every position; with targets, only say how well: all logits at once are many.

        `ids` and `targets` are int64 [batch, tokens] with tokens <= config.seq; targets are the ids one place on.
        With a cache the ids follow the tokens in it and are added to it, and logits are those of the last position
        alone: for use under torch.no_grad().
        """
        before = 0 if cache is None else cache.tokens
        positions = torch.arange(before, before + ids.shape[1], device=ids.device)
        hidden = self.dropout(self.tokens(ids) + self.positions(positions))
        for index, block in enumerate(self.blocks):
            hidden = block(hidden) if cache is None else block(hidden, cache.layers[index])
        if cache is not None:
            cache.tokens += ids.shape[1]
            hidden = hidden[:, -1:]
        hidden, table = self.norm(hidden), self.tokens.weight
        if targets is None:
            return Prediction(logits=use_by_name([table], lambda: functional.linear(hidden, table), hidden))
        return Prediction(loss=tiled_cross_entropy(hidden, table, targets))


def residual_deviation(config: GPTConfig) -> float:
    """Deviation of a layer's two residual projections, so that the stream's variance does not grow with depth."""
    return INITIAL_DEVIATION / math.sqrt(2 * config.layers)
