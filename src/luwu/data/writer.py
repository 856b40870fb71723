"""The tokens of a corpus on their way to disk, with notes from which an interrupted preparation continues."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from luwu.core.files import unshare
from luwu.core.json_fields import MALFORMED
from luwu.core.room import NO_WAIT, Room, is_full, no_room
from luwu.data.corpus import CHECK_BYTES, DATA_NAME, MOST_BYTES, Corpus
from luwu.data.documents import Counts
from luwu.data.passages import Passage, Position
from luwu.data.source import Source
from luwu.data.tokenizer import TOKENIZER_FILE, FileTokenizer, Tokenizer, Tokens, token_type

NOTED_BYTES = 64 << 20
"""Bytes of text whose work a restart repeats at most; it reads at most one file again."""

TRAIN_PARTIAL, VALIDATION_PARTIAL, NOTES = "corpus.bin.partial", "corpus.validation.partial", "corpus.notes.json"


@dataclass
class _Part:
    """Tokens of one part so far: their number, the bytes of text they stand for, and the CRC-32 of the part's file."""

    tokens: int = 0
    text_bytes: int = 0
    checksum: int = 0


@dataclass
class _Notes:
    """Notes that a restart continues from."""

    fingerprint: str
    position: Position = field(default_factory=Position)
    train: _Part = field(default_factory=_Part)
    validation: _Part = field(default_factory=_Part)
    counts: list[int] = field(default_factory=list)


class Writer:
    """Writer of both parts, and of the notes for a restart; closed without `finish` it leaves all of them."""

    def __init__(self, folder: Path, fingerprint: str, tokenizer: Tokenizer, room: Room = NO_WAIT) -> None:
        self._folder = folder
        self._room = room
        self._tokenizer = tokenizer
        self.notes = self._read_notes(fingerprint)
        self._counts = np.zeros(tokenizer.vocabulary, dtype=np.int64)
        self._counts[: len(self.notes.counts)] = self.notes.counts
        self._since_noted = 0
        self._train = self._open(TRAIN_PARTIAL, self.notes.train)
        self._validation = self._open(VALIDATION_PARTIAL, self.notes.validation)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._train.close()
        self._validation.close()

    def write(self, batch: list[Passage], every: int, position: Position) -> None:
        """Append the tokens of a batch, and note the progress now and then."""
        tokens = tokens_of(batch, self._tokenizer)
        for held_back in (False, True):
            chosen = [index for index, passage in enumerate(batch) if passage.held_back(every) == held_back]
            if chosen:
                self._append(held_back, [batch[index] for index in chosen], [tokens[index] for index in chosen])
        self._since_noted += sum(len(passage.data) for passage in batch)
        if self._since_noted >= NOTED_BYTES:
            self._since_noted = 0
            self._note(position)

    def _append(self, held_back: bool, passages: list[Passage], tokens: list[Tokens]) -> None:
        part, file = self.notes.train, self._train
        if held_back:
            part, file = self.notes.validation, self._validation
        joined = np.concatenate(tokens)
        data = joined.tobytes()
        self._room.append(file, data, self._folder)
        ends = 0 if self._tokenizer.end is None else sum(passage.ends for passage in passages)
        part.tokens += len(joined)
        part.text_bytes += sum(len(passage.data) for passage in passages) + ends
        part.checksum = zlib.crc32(data, part.checksum)
        self._counts += np.bincount(joined, minlength=len(self._counts))

    def finish(self, source: Source, counts: Counts) -> Corpus:
        """Put the parts together and write the sidecar."""
        self._validation.seek(0)
        checksum = self.notes.train.checksum
        while data := self._validation.read(CHECK_BYTES):
            self._room.append(self._train, data, self._folder)
            checksum = zlib.crc32(data, checksum)
        _flush(self._train)
        folder, tokenizer = self._folder, self._tokenizer
        if isinstance(tokenizer, FileTokenizer) and tokenizer.path != folder / TOKENIZER_FILE:
            tokenizer.save(folder / TOKENIZER_FILE, self._room)
        (folder / TRAIN_PARTIAL).replace(folder / DATA_NAME)
        corpus = Corpus(
            name=source.name,
            files=len(source.files),
            train_bytes=self.notes.train.text_bytes,
            validation_bytes=self.notes.validation.text_bytes,
            entropy=_entropy(self._counts),
            train_tokens=self.notes.train.tokens,
            validation_tokens=self.notes.validation.tokens,
            vocabulary=tokenizer.vocabulary,
            sha256=tokenizer.sha256,
            end_token=tokenizer.end_token if isinstance(tokenizer, FileTokenizer) else None,
            documents=counts.documents,
            blank=counts.blank,
            fingerprint=self.notes.fingerprint,
            checksum=checksum,
            written_ns=(folder / DATA_NAME).stat().st_mtime_ns,
            folder=folder,
        )
        corpus.save(self._room)
        for name in (NOTES, VALIDATION_PARTIAL):
            (folder / name).unlink(missing_ok=True)
        return corpus

    def _note(self, position: Position) -> None:
        _flush(self._train)
        _flush(self._validation)
        self.notes.position = position
        self.notes.counts = self._counts.tolist()
        self._room.write_file(self._folder / NOTES, json.dumps(asdict(self.notes)))

    def _read_notes(self, fingerprint: str) -> _Notes:
        """The notes of an earlier try at the same corpus whose files are there; else empty ones."""
        try:
            words = json.loads((self._folder / NOTES).read_text())
            notes = _Notes(
                words["fingerprint"],
                Position(**words["position"]),
                _Part(**words["train"]),
                _Part(**words["validation"]),
                words["counts"],
            )
            if not _are_whole(notes, self._tokenizer.vocabulary):
                return _Notes(fingerprint)
            enough = all(
                (self._folder / name).stat().st_size >= part.tokens * self._token_bytes
                for name, part in ((TRAIN_PARTIAL, notes.train), (VALIDATION_PARTIAL, notes.validation))
            )
        except (OSError, *MALFORMED):
            return _Notes(fingerprint)
        return notes if enough and notes.fingerprint == fingerprint else _Notes(fingerprint)

    @property
    def _token_bytes(self) -> int:
        return token_type(self._tokenizer.vocabulary).itemsize

    def _open(self, name: str, part: _Part) -> FileIO:
        path = self._folder / name
        self._room.retry(lambda: unshare(path), path)
        file = self._room.retry(lambda: path.open("r+b" if path.exists() else "w+b", buffering=0), path)
        file.truncate(part.tokens * self._token_bytes)
        file.seek(0, os.SEEK_END)
        return file


def tokens_of(batch: list[Passage], tokenizer: Tokenizer) -> list[Tokens]:
    """The tokens of each passage, with the one that ends documents after the last passage of each."""
    kind = token_type(tokenizer.vocabulary)
    if tokenizer.end is None:
        return [np.frombuffer(passage.data, kind) for passage in batch]
    encoded = tokenizer.encode([passage.text for passage in batch])
    end = [tokenizer.end]
    return [
        np.array(tokens + end if passage.ends else tokens, kind) for tokens, passage in zip(encoded, batch, strict=True)
    ]


def _are_whole(notes: _Notes, vocabulary: int) -> bool:
    """Return true when notes that were read are numbers that can be counted on from, and text."""
    position = asdict(notes.position)
    if not isinstance(position.pop("carry"), str) or not isinstance(notes.counts, list):
        return False
    numbers = [*position.values(), *asdict(notes.train).values(), *asdict(notes.validation).values(), *notes.counts]
    return len(notes.counts) <= vocabulary and all(
        isinstance(number, int) and 0 <= number <= MOST_BYTES for number in numbers
    )


def _flush(file: FileIO) -> None:
    try:
        os.fsync(file.fileno())
    except OSError as error:  # must not be tried again: earlier writes may be lost
        raise (no_room(str(file.name), error) if is_full(error) else error) from error


def _entropy(counts: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
