"""Checks that a model predicts tokens, and has room for those of the data and for its sequences. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from luwu.core.errors import ConfigError
from luwu.models.config_file import read_config_file, text_fields

OTHER_HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""Endings of classes of transformers that predict no next token."""

_LONGEST = ("max_position_embeddings", "n_positions")


def check_sizes(file: Path, known: int | None, longest: int | None, vocabulary: int, seq: int) -> None:
    """Check that a model of transformers is large enough for its data.

    Args:
        file: the model's config.json.
        known: size of the model's vocabulary; None: its configuration does not say.
        longest: tokens of the longest sequence that the model can take; None: its configuration does not say.
        vocabulary: size of the data's vocabulary.
        seq: tokens of a sequence.

    Raises:
        ConfigError: the model is too small.
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
    """Check a model's kind and sizes as far as its config.json tells them.

    The model's builder reports a file that cannot be read.

    Raises:
        ConfigError: the model predicts no next token, or it is too small, as `check_sizes`.
    """
    try:
        raw = read_config_file(file, "model.path")
    except ConfigError:
        return
    named = raw.get("architectures")
    if isinstance(named, list) and named and all(str(name).endswith(OTHER_HEADS) for name in named):
        raise ConfigError(
            f"model.path: expected {file} to describe a causal language model, found {', '.join(map(str, named))}; "
            "choose a model that predicts the next token"
        )
    text = text_fields(raw)
    known = text.get("vocab_size")
    longest = next((text[name] for name in _LONGEST if name in text), None)
    if isinstance(known, int | None) and isinstance(longest, int | None):
        check_sizes(file, known, longest, vocabulary, seq)
