"""Passages of documents, each for training or for validation, and the position that a restart needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from luwu.core.errors import DataError
from luwu.data.documents import Counts, Piece, count_documents, read_documents
from luwu.data.source import Source, kind_of

PASSAGE_BYTES = 64 * 1024
"""The text is cut into passages of this size (smaller for short texts); whole passages go to training or validation."""

HELD_BACK = 5
"""Passages that a short text holds back, so that validation has several places of it."""

SMALLEST_BYTES = 256
"""Fewest bytes of a passage in short texts, so that each still makes sense."""


@dataclass(frozen=True)
class Passage:
    """Text that stays together; `ends`: its document ends with it. `number` counts from 0 over the corpus."""

    data: bytes
    ends: bool
    number: int
    file: Path
    offset: int
    """bytes of the file's text before it"""

    def held_back(self, every: int) -> bool:
        """Return True for a passage that is kept for validation: one in `every`."""
        return self.number % every == every // 2

    @property
    def text(self) -> str:
        """Return the passage for a tokenizer; DataError if it is not UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"data {self.file}: expected UTF-8, which tokenizers need, found other bytes at "
                f"{self.offset + error.start}; convert the file (iconv -t UTF-8), or train on bytes without --tokenizer"
            ) from None


def passage_bytes(source: Source, every: int, smallest: int = SMALLEST_BYTES) -> int:
    """Return the bytes of a passage: fewer where there is little text, so that several passages are held back."""
    return max(smallest, min(PASSAGE_BYTES, source.total_bytes // (every * HELD_BACK)))


class Cutter(Protocol):
    """Cutter of pieces into passages; `carry` is the text that was taken in and not given out yet."""

    carry: bytearray

    def cut(self, pieces: Iterable[Piece]) -> Iterator[tuple[bytes, bool]]:
        """Yield the passages of one file, each with True if it ends its document."""

    def flush(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the rest after the last file."""


class ByteCutter:
    """Passages of exactly `size` bytes, of all documents one after another with a newline after each."""

    def __init__(self, size: int) -> None:
        self.carry = bytearray()
        self._size = size

    def cut(self, pieces: Iterable[Piece]) -> Iterator[tuple[bytes, bool]]:
        """Yield passages, some of more than one document."""
        for piece in pieces:
            self.carry += piece.data
            if piece.ends:
                self.carry += b"\n"
            while len(self.carry) >= self._size:
                passage = bytes(self.carry[: self._size])
                del self.carry[: self._size]
                yield passage, False

    def flush(self) -> Iterator[tuple[bytes, bool]]:
        """Yield the last, shorter passage."""
        if self.carry:
            yield bytes(self.carry), False


class DocumentCutter:
    """Passages of at most `size` bytes that lie within one document, cut after a line, else a word, else a letter."""

    def __init__(self, size: int) -> None:
        self.carry = bytearray()
        self._size = size

    def cut(self, pieces: Iterable[Piece]) -> Iterator[tuple[bytes, bool]]:
        """Yield passages, each of one document."""
        for piece in pieces:
            self.carry += piece.data
            while len(self.carry) > self._size:
                end = self._good_end()
                passage = bytes(self.carry[:end])
                del self.carry[:end]
                yield passage, False
            if piece.ends:
                passage = bytes(self.carry)
                self.carry.clear()
                yield passage, True

    def flush(self) -> Iterator[tuple[bytes, bool]]:
        """Yield nothing: every file ends its last document."""
        return iter(())

    def _good_end(self) -> int:
        size, carry = self._size, self.carry
        line = carry.rfind(b"\n", 0, size) + 1
        if line:
            return line
        word = carry.rfind(b" ", 1, size)  # the space goes with the word after it, as most tokenizers have it
        if word > 0:
            return word
        letter = size
        while letter > size - 4 and carry[letter] & 0xC0 == 0x80:
            letter -= 1
        return letter


@dataclass
class Position:
    """A place in the text: the state at the start of a file, and the number of its passages that were handed out."""

    file: int = 0
    carry: str = ""
    """the cutter's, a letter a byte"""
    documents: int = 0
    blank: int = 0
    passages_before: int = 0
    passages: int = 0


class Passages:
    """All passages of a source in order, from `position` on; `position`, `counts` and `done_bytes` move along.

    Reading goes on at the start of the file that was being read, and leaves out what was given out already.

    Args:
        source: the files.
        cutter: cutter of the passages.
        text_field: field of JSONL, or column of Parquet, with the text.
        keep_blank_files: keep text files without text; each still makes a newline in a corpus of bytes.
        position: position of an earlier reading of the same source.
    """

    def __init__(
        self,
        source: Source,
        cutter: Cutter,
        text_field: str,
        *,
        keep_blank_files: bool = False,
        position: Position | None = None,
    ) -> None:
        self.position = position or Position()
        self.counts = Counts()
        self.done_bytes = 0.0
        self._source = source
        self._cutter = cutter
        self._text_field = text_field
        self._keep_blank_files = keep_blank_files

    def __iter__(self) -> Iterator[Passage]:
        start, number = self.position, self.position.passages_before
        skip = start.passages
        self._cutter.carry[:] = start.carry.encode("latin-1")
        self.counts.documents, self.counts.blank = start.documents, start.blank
        done = 0
        for index, file in enumerate(self._source.files):
            size = file.stat().st_size
            if index >= start.file:
                carry = self._cutter.carry.decode("latin-1")
                self.position = Position(index, carry, self.counts.documents, self.counts.blank, number)
                offset = 0
                for data, ends in self._cut(file, done, size, last=index == len(self._source.files) - 1):
                    self.position.passages += 1
                    if self.position.passages > skip:
                        yield Passage(data, ends, number, file, offset)
                    number += 1
                    offset += len(data)
                skip = 0
            done += size

    def _cut(self, file: Path, done: int, size: int, *, last: bool) -> Iterator[tuple[bytes, bool]]:
        yield from self._cutter.cut(self._pieces(file, done, size))
        if last:
            yield from self._cutter.flush()

    def _pieces(self, file: Path, done: int, size: int) -> Iterator[Piece]:
        keep_blank = self._keep_blank_files and kind_of(file) == "text"
        for piece in count_documents(read_documents(file, self._text_field), self.counts, keep_blank=keep_blank):
            self.done_bytes = done + size * piece.place
            yield piece
