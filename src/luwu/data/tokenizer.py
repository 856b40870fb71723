"""Text to tokens and back: the bytes themselves, or the tokens of a tokenizer.json of the `tokenizers` library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from luwu.core.errors import DataError
from luwu.core.room import NO_WAIT, Room

TOKENIZER_FILE = "tokenizer.json"

BYTE_VALUES = 256

END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
"""Usual names of the token that ends a document. The first one found counts, after the folder's own eos_token."""

MOST_TOKENS = 2**32
"""Bound of a vocabulary: token numbers are 32 bits wide."""

SPECIAL_SHOWN = 20

Tokens = np.ndarray[Any, np.dtype[Any]]
"""Token numbers: uint8, uint16 or uint32, by the vocabulary."""


class Tokenizer(Protocol):
    """Interface of a tokenizer, as a corpus uses it."""

    vocabulary: int
    """bound of the token numbers"""
    end: int | None
    """the token put after each document; None: bytes, where a newline is part of the text"""
    sha256: str | None
    """SHA-256 of the file that it was read from"""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, without any that begin or end it."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are no text become U+FFFD."""


class ByteTokenizer:
    """Every byte of the UTF-8 text is a token."""

    vocabulary = BYTE_VALUES
    end: int | None = None
    sha256: str | None = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The bytes of each text."""
        return [list(text.encode()) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of bytes."""
        return bytes(tokens).decode(errors="replace")


class FileTokenizer:
    """A tokenizer.json, as `luwu tokenizer` and Hugging Face's fast tokenizers write it.

    Truncation and padding that the file may ask for are switched off: a corpus is neither cut nor filled up.

    Args:
        path: the file, or a folder with a ``tokenizer.json``.
        end_token: the token put after each document; None: the folder's ``eos_token``, else the first of `END_TOKENS`
            that the vocabulary has.

    Raises:
        DataError: there is no such file, it is not a tokenizer, or no token can end a document.
    """

    def __init__(self, path: str | Path, end_token: str | None = None) -> None:
        self.path = find_tokenizer(path)
        from tokenizers import Tokenizer as Reader

        self._content = content = self.path.read_bytes()
        try:
            self._reader = Reader.from_buffer(content)
        except Exception as error:  # the library raises nothing more special
            raise DataError(
                f"tokenizer {self.path}: expected a tokenizer.json of the tokenizers library, found what it cannot "
                f"read ({error}); write one with `luwu tokenizer`, or with save_pretrained of a fast tokenizer"
            ) from None
        self._reader.no_truncation()
        self._reader.no_padding()
        self.sha256: str | None = hashlib.sha256(content).hexdigest()
        vocabulary = self._reader.get_vocab()
        self.vocabulary = max(vocabulary.values(), default=-1) + 1
        self.end_token = end_token or self._find_end(vocabulary)
        if self.end_token not in vocabulary:
            raise DataError(
                f"tokenizer {self.path}: expected a token {self.end_token!r} to end documents with, found none of "
                f"that name; name another with --end-token ({self._special()})"
            )
        self.end: int | None = vocabulary[self.end_token]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, made in parallel by the library's own threads.

        Raises:
            DataError: the file names a token for what is not in its vocabulary that is not there itself.
        """
        with self._saying_why():
            return [encoding.ids for encoding in self._reader.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of a text, after those that the file puts before every text. Raises as `encode`."""
        with self._saying_why():
            return list(self._reader.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, with special tokens as their names."""
        return self._reader.decode(list(tokens), skip_special_tokens=False)

    def save(self, file: Path, room: Room = NO_WAIT) -> None:
        """Write the tokenizer.json as it was read."""
        room.write_file(file, self._content)

    @contextmanager
    def _saying_why(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library raises nothing more special
            raise DataError(
                f"tokenizer {self.path}: expected tokens for any text, found that it has none for some ({error}); mend "
                "its unk_token, or take another tokenizer"
            ) from None

    def _find_end(self, vocabulary: dict[str, int]) -> str:
        names = [*_configured_end(self.path.parent), *END_TOKENS]
        found = next((name for name in names if name in vocabulary), None)
        if found is None:
            raise DataError(
                f"tokenizer {self.path}: expected a token that ends documents, one of {', '.join(END_TOKENS)}, found "
                f"none; name one with --end-token ({self._special()})"
            )
        return found

    def _special(self) -> str:
        tokens = [token.content for token in self._reader.get_added_tokens_decoder().values()]
        if not tokens:
            return "it has no special tokens: any of its vocabulary will do"
        return "its special tokens: " + ", ".join(tokens[:SPECIAL_SHOWN])


def find_tokenizer(path: str | Path) -> Path:
    """Return the tokenizer.json of a file or folder, after checking that it can be read; nothing is loaded.

    Raises:
        DataError: there is none, or the package that reads it is missing.
    """
    file = Path(path)
    if file.is_dir():
        file = file / TOKENIZER_FILE
    if not file.is_file():
        raise DataError(
            f"tokenizer {path}: expected a tokenizer.json or a folder with one, found none; train one with "
            "`luwu tokenizer`, or have transformers write one with save_pretrained of a fast tokenizer"
        )
    if find_spec("tokenizers") is None:
        raise DataError(f"tokenizer {path}: needs the package tokenizers, found none; pip install tokenizers")
    return file


def count_tokens(path: str | Path) -> int | None:
    """Return the number of tokens of a tokenizer's file or folder without the tokenizers library.

    None: the file is not there, or does not tell.
    """
    try:
        raw = json.loads(find_tokenizer(path).read_text(encoding="utf-8"))
        vocabulary = raw["model"]["vocab"]
        numbers = [*vocabulary.values()] if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        found = int(max([*numbers, *(token["id"] for token in raw.get("added_tokens") or ())])) + 1
    except (DataError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return found if 1 <= found <= MOST_TOKENS else None


def token_type(vocabulary: int) -> np.dtype[Any]:
    """The smallest type that holds every token of a vocabulary, little-endian."""
    if vocabulary <= 2**8:
        return np.dtype("u1")
    return np.dtype("<u2") if vocabulary <= 2**16 else np.dtype("<u4")


def _configured_end(folder: Path) -> list[str]:
    """Return the eos_token of a Hugging Face tokenizer's folder, if it names one."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            token = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            return [token]
    return []
