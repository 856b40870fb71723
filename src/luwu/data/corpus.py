"""A prepared corpus: tokens in one file that every worker maps, and a sidecar that describes them.

corpus.bin holds the training tokens followed by the validation tokens, 1, 2 or 4 bytes each by the vocabulary;
corpus.json says where one ends. Workers map corpus.bin, so they share the page cache and hold no copy. A corpus
that was made with a tokenizer has its tokenizer.json beside it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from luwu.core.errors import DataError
from luwu.core.json_fields import MALFORMED, whole, words
from luwu.core.quantities import shown
from luwu.core.room import NO_WAIT, Room
from luwu.data.tokenizer import (
    BYTE_VALUES,
    TOKENIZER_FILE,
    ByteTokenizer,
    FileTokenizer,
    Tokenizer,
    Tokens,
    find_tokenizer,
    token_type,
)

DATA_NAME, SIDECAR_NAME = "corpus.bin", "corpus.json"

REBUILD = "delete corpus.json to have it read again from the data"

CHECK_BYTES = 1 << 22

MOST_BYTES = 1 << 62
"""Bound of the numbers in a sidecar that is read."""

_NUMBERS = (
    "files", "train_bytes", "validation_bytes", "train_tokens", "validation_tokens", "vocabulary", "documents", "blank",
    "checksum", "written_ns",
)  # fmt: skip

Progress = Callable[[float, float], None]
"""Function that is called now and then with bytes done and bytes in all; an error of it ends the work."""


@dataclass(frozen=True)
class Corpus:
    """Contents of corpus.json.

    `train_bytes` and `validation_bytes` are of text, with one more for the end of each document; `entropy` is that of
    single tokens in nats: what a model without context can reach. `blank` documents are among `documents` and were left
    out. `sha256` and `end_token` are the tokenizer's, None for bytes.
    """

    name: str
    files: int
    train_bytes: int
    validation_bytes: int
    entropy: float
    train_tokens: int = 0
    validation_tokens: int = 0
    vocabulary: int = BYTE_VALUES
    sha256: str | None = None
    end_token: str | None = None
    documents: int = 0
    blank: int = 0
    fingerprint: str = ""
    """hash of the data and of all that decides its tokens"""
    checksum: int | None = None
    """CRC-32 of corpus.bin; None in corpora of earlier versions"""
    written_ns: int = 0
    """time when corpus.bin was last seen to be whole, by the clock of its file system"""
    folder: Path = field(default=Path(), compare=False)
    """folder of the corpus; not in the sidecar"""

    @staticmethod
    def load(folder: str | Path) -> Corpus | None:
        """Return the corpus prepared in `folder`, None if there is none.

        DataError if corpus.bin is not what was written.
        """
        folder = Path(folder)
        try:
            fields = json.loads((folder / SIDECAR_NAME).read_text())
            if "train_tokens" not in fields:  # an earlier version's, of bytes
                fields |= {"train_tokens": fields["train_bytes"], "validation_tokens": fields["validation_bytes"]}
            corpus = Corpus(**_checked(fields), folder=folder)
        except FileNotFoundError:
            return None
        except (OSError, *MALFORMED) as error:
            raise DataError(f"{folder / SIDECAR_NAME}: cannot be used ({error}); {REBUILD}") from None
        path, expected = folder / DATA_NAME, corpus.tokens * corpus.token_bytes
        found = path.stat().st_size if path.exists() else 0
        if found != expected:
            raise DataError(f"{path}: expected {expected} bytes, found {found}; {REBUILD}")
        return corpus

    @property
    def tokens(self) -> int:
        """Training and validation tokens."""
        return self.train_tokens + self.validation_tokens

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in corpus.bin."""
        return token_type(self.vocabulary).itemsize

    @property
    def unit(self) -> str:
        """Name of a token for people: byte or token."""
        return "byte" if self.sha256 is None else "token"

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes per token of the held-back text.

        A loss in nats per token divided by it is in nats per byte, whatever the tokenizer.
        """
        return self.validation_bytes / max(1, self.validation_tokens)

    @property
    def train(self) -> Tokens:
        """The training tokens, uint8, uint16 or uint32 by the vocabulary, mapped read-only."""
        return self._map()[: self.train_tokens]

    @property
    def validation(self) -> Tokens:
        """The tokens held back, as `train`."""
        return self._map()[self.train_tokens :]

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that the corpus was made with; DataError if its file is missing or another."""
        if self.sha256 is None:
            return ByteTokenizer()
        tokenizer = FileTokenizer(self.folder / TOKENIZER_FILE, self.end_token)
        self.check_tokenizer(tokenizer.path)
        return tokenizer

    def check_tokenizer(self, path: str | Path | None) -> None:
        """Check that a tokenizer's file, or None for bytes, is the one that the corpus was made with.

        Raises DataError.
        """
        found = None if path is None else hashlib.sha256(find_tokenizer(path).read_bytes()).hexdigest()
        if found != self.sha256:
            raise DataError(
                f"tokenizer {path}: expected the one that the corpus was prepared with ({_short(self.sha256)}), found "
                f"another ({_short(found)}); give the first one back, or start another run with --run"
            )

    def check_length(self, seq: int) -> None:
        """Check that both parts hold a sequence of `seq` tokens and its targets; raises DataError."""
        for part, found in (("training", self.train_tokens), ("validation", self.validation_tokens)):
            if found <= seq:
                raise DataError(
                    f"data {self.name}: expected at least {seq + 1} {self.unit}s of {part} text for sequences of "
                    f"{seq}, found {found}; use more text or a smaller --seq"
                )

    def save(self, room: Room = NO_WAIT) -> None:
        """Write the sidecar, whole or not at all."""
        words = asdict(self)
        del words["folder"]
        room.write_file(self.folder / SIDECAR_NAME, json.dumps(words, indent=1) + "\n")

    def verify(self, on_progress: Progress | None = None) -> None:
        """Read all of corpus.bin and compare its checksum; raises DataError if it is damaged."""
        if self.checksum is None:
            return
        path, found, done = self.folder / DATA_NAME, 0, 0
        with path.open("rb") as file:
            while data := file.read(CHECK_BYTES):
                found = zlib.crc32(data, found)
                done += len(data)
                if on_progress is not None:
                    on_progress(done, self.tokens * self.token_bytes)
        if found != self.checksum:
            raise DataError(
                f"{path}: expected the checksum {self.checksum:08x}, found {found:08x}: the file is damaged; {REBUILD}"
            )

    def verify_if_touched(self, on_progress: Progress | None = None, room: Room = NO_WAIT) -> Corpus:
        """Verify the corpus if corpus.bin was copied or written since it was last seen whole.

        Return the corpus as it is then.
        """
        changed_ns = (self.folder / DATA_NAME).stat().st_mtime_ns
        if self.checksum is None or changed_ns == self.written_ns:
            return self
        self.verify(on_progress)
        seen = replace(self, written_ns=changed_ns)
        seen.save(room)
        return seen

    def _map(self) -> Tokens:
        return np.memmap(self.folder / DATA_NAME, dtype=token_type(self.vocabulary), mode="r")


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    """The sidecar's fields; raises ValueError for one that is not of its kind."""
    for name, value in fields.items():
        if name in _NUMBERS and (name, value) != ("checksum", None):
            whole(fields, name, 0, MOST_BYTES)
        elif name == "entropy":
            if not isinstance(value, (int, float)):
                raise ValueError(f"entropy {shown(value)}, which is no number")
        elif value is not None or name in ("name", "fingerprint"):
            words(value, name)
    return fields


def _short(sha256: str | None) -> str:
    return "bytes" if sha256 is None else f"sha256 {sha256[:12]}"
