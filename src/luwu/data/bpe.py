"""Train a byte-level BPE on a corpus (Sennrich et al., 2016, arXiv:1508.07909; on bytes: Radford et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from luwu.core.errors import ConfigError, DataError
from luwu.core.files import replace_text
from luwu.data.corpus import Progress
from luwu.data.passages import DocumentCutter, Passage, Passages, passage_bytes
from luwu.data.source import Source, find_text
from luwu.data.tokenizer import BYTE_VALUES, FileTokenizer

END_TOKEN = "<|endoftext|>"

SMALLEST_VOCABULARY = BYTE_VALUES + 1
"""Smallest vocabulary: every byte, and the end of a document."""

MEASURED_BYTES = 16 << 20
"""Most bytes of held-back text that the result is measured on."""


@dataclass(frozen=True)
class TrainedTokenizer:
    """A trained tokenizer: its vocabulary, the text it was trained on, and its result on text that was held back."""

    vocabulary: int
    train_bytes: int
    measured_bytes: int
    measured_tokens: int

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes per token of the held-back text; NaN if there was too little text to hold any back."""
        return self.measured_bytes / self.measured_tokens if self.measured_tokens else math.nan


def train_tokenizer(
    data: Source | str | Path | Sequence[str | Path] | None,
    file: str | Path,
    vocabulary: int = 8192,
    *,
    text_field: str = "text",
    validation_fraction: float = 0.05,
    on_progress: Progress | None = None,
    on_merging: Callable[[], None] | None = None,
) -> TrainedTokenizer:
    """Train a byte-level BPE as GPT-2's and write it as a tokenizer.json.

    Text is read as a stream; memory grows with the number of different words alone. The passages that `prepare` would
    hold back for validation are not trained on. The same text gives the same file.

    Args:
        data: files and folders of text, JSONL and Parquet; None: the Python standard library's source.
        file: the tokenizer.json to write.
        vocabulary: tokens, at least 257: every byte and ``<|endoftext|>``; a short text may give fewer.
        text_field: field of JSONL, and column of Parquet, that has the text.
        validation_fraction: share of the text held back, as for `prepare`.
        on_progress: called with bytes of files read and in all.
        on_merging: called once, when all text has been read and pairs are merged, which takes a while too.

    Raises:
        ConfigError: the vocabulary is too small.
        DataError: text that cannot be used, or the package tokenizers is missing.
    """
    if vocabulary < SMALLEST_VOCABULARY:
        raise ConfigError(f"vocabulary: expected at least {SMALLEST_VOCABULARY} tokens, found {vocabulary}")
    if find_spec("tokenizers") is None:
        raise DataError("training a tokenizer needs the package tokenizers, found none; pip install tokenizers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    source, every = data if isinstance(data, Source) else find_text(data), round(1 / validation_fraction)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    passages = Passages(source, DocumentCutter(passage_bytes(source, every)), text_field)
    text = _TrainingText(passages, every, source.total_bytes, on_progress, on_merging)
    tokenizer.train_from_iterator(text, trainer)
    path = Path(file)
    replace_text(path, tokenizer.to_str(pretty=True))
    reader = FileTokenizer(path)
    measured = sum(len(tokens) for tokens in reader.encode([passage.text for passage in text.held_back]))
    return TrainedTokenizer(reader.vocabulary, text.train_bytes, text.held_back_bytes, measured)


class _TrainingText:
    """Gives the passages to train on, and keeps some of those held back."""

    def __init__(
        self,
        passages: Passages,
        every: int,
        total_bytes: int,
        on_progress: Progress | None,
        on_end: Callable[[], None] | None,
    ) -> None:
        self.train_bytes = 0
        self.held_back: list[Passage] = []
        self.held_back_bytes = 0
        self._passages = passages
        self._every = every
        self._total_bytes = total_bytes
        self._on_progress = on_progress
        self._on_end = on_end

    def __iter__(self) -> Iterator[str]:
        for passage in self._passages:
            if self._on_progress is not None:
                self._on_progress(self._passages.done_bytes, self._total_bytes)
            if not passage.held_back(self._every):
                self.train_bytes += len(passage.data)
                yield passage.text
            elif self.held_back_bytes < MEASURED_BYTES:
                self.held_back_bytes += len(passage.data)
                self.held_back.append(passage)
        if self._on_end is not None:
            self._on_end()
