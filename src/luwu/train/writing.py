"""Text that a model writes, with a cache of keys and values: after a prompt a token pulls every block once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from luwu.core.errors import ConfigError
from luwu.models.generation import Sampling, generate
from luwu.models.gpt import GPT
from luwu.models.language import end_tokens, generate_causal
from luwu.train.model import RunModel

TokensFunction = Callable[[list[int]], None]
"""Function that is called with the next token of each text."""


def write(
    model: RunModel,
    vocabulary: int,
    prompt: list[int],
    count: int,
    sampling: Sampling,
    samples: int,
    on_tokens: TokensFunction,
) -> None:
    """Continue a prompt.

    The GPT writes ``count`` tokens and lets the older half of a text go that has become too long for it; one of
    transformers writes as its own ``generate`` does, until its text ends.

    Raises:
        ConfigError: as `check_request`.
    """
    check_request(model, prompt, count, sampling, samples)
    begin, module = torch.tensor(prompt, device=model.device), model.module
    if isinstance(module, GPT):
        cache = model.new_cache(samples)
        for drawn in generate(model.predict, begin, count, module.config.seq, sampling, samples, cache):
            on_tokens(drawn.tolist())
    else:
        causal: Any = module
        generate_causal(causal, begin, count, vocabulary, sampling, samples, on_tokens)


def check_request(model: RunModel, prompt: list[int], count: int, sampling: Sampling, samples: int) -> None:
    """Check that a model can write this.

    Raises:
        ConfigError: the prompt is empty, or longer than the model can see; or for one of transformers, which lets
            nothing go, prompt and text are together; or there would be the same text several times.
        DataError: the prompt has tokens that the model does not know.
    """
    if not prompt:
        raise ConfigError("prompt: expected at least one token to go on from, found none; give some text")
    model.check_tokens(np.array(prompt))
    if samples > 1 and sampling.temperature == 0.0:
        raise ConfigError("samples: expected 1 at temperature 0, where all are the same; raise the temperature")
    longest = model.longest
    if longest is None:
        return
    if isinstance(model.module, GPT):
        if len(prompt) >= longest:
            raise ConfigError(
                f"prompt: expected fewer than {longest} tokens, the model's seq, found {len(prompt)}; cut it"
            )
    elif len(prompt) + count > longest:
        raise ConfigError(
            f"length: expected at most {longest} tokens, which the model can see, for the prompt's {len(prompt)} and "
            f"those to write, found {len(prompt) + count}; write fewer, or cut the prompt"
        )


def ends_of(model: RunModel) -> set[int]:
    """Return the tokens after which a text is over; the GPT goes on with the next document."""
    causal: Any = model.module
    return set() if isinstance(causal, GPT) else end_tokens(causal)
