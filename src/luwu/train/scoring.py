"""Loss of a model on a text, in passes of many sequences: each pass pulls every block once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from luwu.core.errors import ConfigError, DataError
from luwu.data.tokenizer import Tokens
from luwu.train.evaluation import measure
from luwu.train.model import RunModel

TOGETHER_TOKENS = 65_536
"""Tokens of a pass: between blocks each is one vector in memory."""

INSIDE_TOKENS = 4096
"""Tokens that a block computes at a time."""

LOGIT_BYTES = 256 * 2**20
"""Most bytes of logits that a pass may have, in the model's dtype and in float32, where logits are made at all."""


@dataclass(frozen=True)
class Score:
    """Result of a measurement; `loss` is in nats per token, `seconds` those of the passes alone."""

    step: int
    loss: float
    bits_per_byte: float
    perplexity: float
    windows: int
    seq: int
    tokens: int
    seconds: float
    tokens_per_second: float


def score(
    model: RunModel,
    step: int,
    text: Tokens,
    bytes_per_token: float,
    *,
    seq: int,
    windows: int | None = None,
    batch: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, wanted: None,
) -> Score:
    """Measure a model in eval mode.

    Args:
        model: whose blocks compute a few rows at a time, as `rows_inside` says.
        step: committed steps, for the score.
        text: tokens.
        bytes_per_token: mean bytes per token of the text.
        seq: tokens of a sequence.
        windows: sequences, spread evenly over the text; None: all of it.
        batch: sequences of a pass; None: as many as memory of some hundred MB allows.
        on_progress: called with sequences done and in all.

    Raises:
        ConfigError: sequences are longer than the model can see. DataError: the text is shorter than one, or has
            tokens that the model does not know.
    """
    longest = model.longest
    if longest is not None and seq > longest:
        raise ConfigError(f"seq: expected at most {longest} tokens, which the model can see, found {seq}")
    if len(text) <= seq:
        raise DataError(
            f"data: expected at least {seq + 1} tokens for sequences of {seq}, found {len(text)}; use more text or a "
            "smaller --seq"
        )
    model.check_tokens(text)
    begun = time.perf_counter()
    loss_sum, measured = measure(
        model.predict,
        text,
        seq,
        lambda: batch or rows_together(model, seq),
        windows or len(text),
        model.device,
        on_progress=on_progress,
    )
    seconds, loss = time.perf_counter() - begun, loss_sum / measured
    return Score(
        step=step,
        loss=loss,
        bits_per_byte=loss / bytes_per_token / math.log(2),
        perplexity=math.exp(loss) if loss < math.log(1e300) else math.inf,
        windows=measured,
        seq=seq,
        tokens=measured * seq,
        seconds=seconds,
        tokens_per_second=measured * seq / seconds,
    )


def rows_inside(seq: int) -> int:
    """Sequences that a block computes at a time."""
    return max(1, INSIDE_TOKENS // seq)


def rows_together(model: RunModel, seq: int) -> int:
    """Return the sequences of a pass.

    Fewer in the first if only that pass will show how the model computes its loss.
    """
    rows = TOGETHER_TOKENS // seq
    if not model.tiles_logits:
        config: Any = model.module.config
        width = model.dtype.itemsize + 4
        rows = min(rows, LOGIT_BYTES // (seq * int(config.get_text_config().vocab_size) * width))
    return max(1, rows)
