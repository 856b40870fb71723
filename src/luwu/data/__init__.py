"""Text corpora, tokenizers, and the order in which workers see samples. The names below are for loops of your own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luwu.data.bpe import train_tokenizer
    from luwu.data.corpus import Corpus
    from luwu.data.loader import BatchSampler, Windows
    from luwu.data.preparation import prepare

__all__ = ["BatchSampler", "Corpus", "Windows", "prepare", "train_tokenizer"]

# Resolved at first use: the launcher prepares data without torch.
_PLACES = {
    "BatchSampler": "luwu.data.loader",
    "Corpus": "luwu.data.corpus",
    "Windows": "luwu.data.loader",
    "prepare": "luwu.data.preparation",
    "train_tokenizer": "luwu.data.bpe",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'luwu.data' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
