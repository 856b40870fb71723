"""Tokens of texts that are measured, not learned: read from the beginning, kept in memory."""

from __future__ import annotations

import numpy as np

from luwu.data.passages import PASSAGE_BYTES, ByteCutter, Cutter, DocumentCutter, Passages
from luwu.data.preparation import batches
from luwu.data.source import Source
from luwu.data.tokenizer import Tokenizer, Tokens, token_type
from luwu.data.writer import tokens_of


def read_tokens(source: Source, tokenizer: Tokenizer, text_field: str, most: int | None) -> tuple[Tokens, int]:
    """Return the tokens of a text as a corpus would have them, and the bytes of text that they stand for.

    Args:
        source: files, read in their order.
        tokenizer: tokenizer of the text.
        text_field: field of JSONL, and column of Parquet, that has the text.
        most: tokens that are enough, at a few MiB of text more or less; None: all.

    Raises:
        DataError: a file cannot be read, or is not UTF-8 where a tokenizer needs it.
    """
    bytewise = tokenizer.end is None
    cutter: Cutter = ByteCutter(PASSAGE_BYTES) if bytewise else DocumentCutter(PASSAGE_BYTES)
    parts: list[Tokens] = [np.zeros(0, token_type(tokenizer.vocabulary))]
    tokens = text_bytes = 0
    for batch in batches(Passages(source, cutter, text_field, keep_blank_files=bytewise)):
        parts += tokens_of(batch, tokenizer)
        tokens = tokens + sum(len(part) for part in parts[-len(batch) :])
        text_bytes += sum(len(passage.data) + (passage.ends and not bytewise) for passage in batch)
        if most is not None and tokens >= most:
            break
    return np.concatenate(parts), text_bytes
