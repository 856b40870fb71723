"""What a model must have room for: the tokens of the data, and the length of its sequences. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from luwu.errors import ConfigError

_LONGEST = ("max_position_embeddings", "n_positions")


def check_sizes(file: Path, known: int | None, longest: int | None, vocabulary: int, seq: int) -> None:
    """See that a model of transformers is large enough for its data.

    Args:
        file: its config.json.
        known: tokens that it knows; None: its configuration does not say.
        longest: tokens of the longest sequence that it can see; None: likewise.
        vocabulary: tokens that the data has.
        seq: tokens of a sequence.

    Raises:
        ConfigError: it is not.
    """
    if known is not None and known < vocabulary:
        what = "bytes" if vocabulary == 256 else "the tokens of the data"
        raise ConfigError(
            f"model.path: {file}: vocab_size: expected at least {vocabulary} for {what}, found {known}; use the "
            "tokenizer that belongs to the model, or raise vocab_size if it starts from nothing"
        )
    if longest is not None and longest < seq:
        raise ConfigError(
            f"model.seq: expected at most {longest}, the max_position_embeddings of {file}, found {seq}; "
            "use a smaller --seq"
        )


def check_config(file: Path, vocabulary: int, seq: int) -> None:
    """`check_sizes` of what a config.json says plainly; one that cannot be read is for the model's builder to name."""
    try:
        raw: Any = json.loads(file.read_text(encoding="utf-8"))
        text = raw.get("text_config", raw)
        known = text.get("vocab_size")
        longest = next((text[name] for name in _LONGEST if name in text), None)
    except (OSError, ValueError, AttributeError):
        return
    if isinstance(known, int | None) and isinstance(longest, int | None):
        check_sizes(file, known, longest, vocabulary, seq)
