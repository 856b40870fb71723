"""Write text with a model, a token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from luwu.models.kv_cache import KeyValueCache


@dataclass(frozen=True)
class Sampling:
    """Rule that chooses the next token."""

    temperature: float = 1.0
    """sampling temperature: 1 takes the model's probabilities, less prefers likely tokens, 0 takes the likeliest"""
    top_k: int | None = None
    """only this many of the likeliest tokens; None: all"""
    seed: int = 0
    """Seed of the first text; each text beside it has the next one."""


@torch.no_grad()
def generate(
    model: Callable[..., Any],
    prompt: Tensor,
    count: int,
    seq: int,
    sampling: Sampling,
    samples: int = 1,
    cache: KeyValueCache | None = None,
) -> Iterator[Tensor]:
    """Go on from a prompt, and give the next token of each text, int64 [samples], ``count`` times.

    The model sees less than the last ``seq`` tokens: a text that fills them loses its older half. So the last position
    is never used, which learns least, because nothing ever attends to it. Draws come from generators of their own on
    the CPU, so the same model, prompt and seed give the same text on every worker.

    Args:
        model: called with ids [samples, tokens], and with the cache if there is one, it returns a `Prediction`.
        prompt: int64 [tokens], at least one.
        count: tokens to write.
        seq: the longest text that the model knows, in tokens.
        sampling: rule that chooses tokens.
        samples: texts that are written together: a block is pulled once for all of them.
        cache: an empty one for ``samples`` texts; the model then sees the prompt once, later one token at a time, and
            the whole again where the text lost its older half. None: the model sees all of the text every time.
    """
    half = max(1, seq // 2)
    generators = [torch.Generator().manual_seed(sampling.seed + index) for index in range(samples)]
    ids = prompt.expand(samples, -1)
    begins = 0
    for _ in range(count):
        length = ids.shape[1]
        start = 0 if length < seq else (length // half - 1) * half
        if cache is None:
            logits = model(ids[:, start:]).logits
        else:
            if start != begins:
                cache.clear()
            logits = model(ids[:, start + cache.tokens :], cache=cache).logits
        begins = start
        drawn = choose(logits[:, -1].float().cpu(), sampling, generators)
        yield drawn
        ids = torch.cat([ids, drawn.unsqueeze(1).to(ids.device)], dim=1)


def choose(logits: Tensor, sampling: Sampling, generators: list[torch.Generator]) -> Tensor:
    """Choose a token for each row of logits, float32 [samples, vocabulary], with the row's own generator."""
    if sampling.temperature == 0.0:
        return logits.argmax(dim=1)
    if sampling.top_k is not None and sampling.top_k < logits.shape[1]:
        least = logits.topk(sampling.top_k, dim=1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    shares = torch.softmax(logits / sampling.temperature, dim=1)
    drawn = [torch.multinomial(row, 1, generator=own) for row, own in zip(shares, generators, strict=True)]
    return torch.cat(drawn)
