"""Make a corpus out of files: read, hold some back for validation, make tokens, and write, in memory of a few MiB.

What is done is noted every few MiB of text, so that a preparation that was stopped or killed goes on from there. The
tokenizers library spreads every batch over its own threads; there is nothing to win with processes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from luwu.control.waiting import saying
from luwu.core.errors import ConfigError, DataError
from luwu.core.room import NO_WAIT, Room
from luwu.core.words import counted
from luwu.data.corpus import SIDECAR_NAME, Corpus, Progress
from luwu.data.passages import PASSAGE_BYTES, ByteCutter, Cutter, DocumentCutter, Passage, Passages, passage_bytes
from luwu.data.source import Source, find_text
from luwu.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer, Tokens, token_type
from luwu.data.writer import Writer, tokens_of

log = logging.getLogger(__name__)

BATCH_BYTES = 2 << 20
"""Text that becomes tokens in one go: enough for some dozens of threads."""

LOCK_NAME = "corpus.lock"

FORMAT = 1
"""Version of the preparation. It changes whenever the same data and settings give other tokens."""


def prepare(
    data: Source | str | Path | Sequence[str | Path] | None,
    folder: str | Path,
    tokenizer: Tokenizer | str | Path | None = None,
    *,
    text_field: str = "text",
    validation_fraction: float = 0.05,
    seq: int = 1,
    on_progress: Progress | None = None,
    room: Room = NO_WAIT,
) -> Corpus:
    """Write corpus.bin and corpus.json into `folder`, and tokenizer.json beside them if there is one.

    One passage in every round(1 / validation_fraction) is held back, always the same ones. The sidecar is written
    last, so a corpus that has one is whole; one made of the same files with the same settings is used as it is. Several
    processes may call this for the same folder: one does the work.

    Args:
        data: files and folders of text, JSONL and Parquet; None: the Python standard library's source.
        folder: folder of the corpus; made if it is missing.
        tokenizer: a tokenizer.json, or a folder with one; None: bytes.
        text_field: field of JSONL, and column of Parquet, that has the text.
        validation_fraction: share of the text held back, at most a half.
        seq: the shortest length in tokens that both parts must hold a sequence of.
        on_progress: called with bytes of files done and in all.
        room: the wait for a full disk.

    Raises:
        DataError: too little text, a file that cannot be read, text that is not UTF-8 where a tokenizer needs it, or a
            tokenizer that cannot be used.
        ConfigError: `validation_fraction` is out of range.
        StoreSpaceError: the disk is full; the same call goes on from there.
    """
    if not 0.0 < validation_fraction <= 0.5:
        raise ConfigError(f"validation_fraction: expected a share above 0 and at most 0.5, found {validation_fraction}")
    source = data if isinstance(data, Source) else find_text(data)
    chosen = _chosen(tokenizer)
    folder, every = Path(folder), round(1 / validation_fraction)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, room):
        corpus = _prepare(source, folder, chosen, text_field, every, seq, on_progress, room)
    corpus.check_length(seq)
    return corpus


def _prepare(
    source: Source,
    folder: Path,
    tokenizer: Tokenizer,
    text_field: str,
    every: int,
    seq: int,
    on_progress: Progress | None,
    room: Room,
) -> Corpus:
    bytewise = tokenizer.end is None
    fingerprint = _fingerprint(source, tokenizer, [FORMAT, seq if bytewise else 0, every, text_field])
    existing = _existing(folder, fingerprint)
    if existing is not None:
        return existing.verify_if_touched(on_progress, room)
    (folder / SIDECAR_NAME).unlink(missing_ok=True)
    cutter: Cutter
    if bytewise:
        cutter = ByteCutter(max(seq + 1, passage_bytes(source, every, smallest=1)))
    else:
        cutter = DocumentCutter(passage_bytes(source, every))
    with Writer(folder, fingerprint, tokenizer, room) as writer:
        position = writer.notes.position
        passages = Passages(source, cutter, text_field, keep_blank_files=bytewise, position=position)
        for batch in batches(passages):
            writer.write(batch, every, passages.position)
            if on_progress is not None:
                on_progress(passages.done_bytes, source.total_bytes)
        return writer.finish(source, passages.counts)


@contextmanager
def _alone(folder: Path, room: Room) -> Iterator[None]:
    """Context manager: one process of this host at a time prepares in a folder; the others find its corpus."""
    path = folder / LOCK_NAME
    with room.retry(lambda: path.open("wb"), path) as lock:
        with saying(log, f"another process, which prepares the data in {folder},", None):
            fcntl.flock(lock, fcntl.LOCK_EX)  # Ctrl-C ends this wait
        yield


def check_length(source: Source, seq: int, validation_fraction: float) -> None:
    """Check, before anything is read, that plain text is long enough to train and to validate on as bytes.

    Raises:
        DataError: some passage could not hold one sequence and its target.
    """
    needed = round(1 / validation_fraction) * (seq + 1)
    if source.plain and source.total_bytes < needed:
        first, rest = source.files[0], len(source.files) - 1
        where = f"{first}" + (f" and {counted(rest, 'other file')}" if rest else "")
        found = source.total_bytes - len(source.files)  # as `ls` has them
        raise DataError(
            f"data {source.name}: expected at least {needed} bytes for sequences of {seq}, found {found} in {where}; "
            "use more text or a smaller --seq"
        )


def _chosen(tokenizer: Tokenizer | str | Path | None) -> Tokenizer:
    if isinstance(tokenizer, (str, Path)):
        return FileTokenizer(tokenizer)
    return tokenizer or ByteTokenizer()


def _existing(folder: Path, fingerprint: str) -> Corpus | None:
    try:
        corpus = Corpus.load(folder)
    except DataError:
        return None
    return corpus if corpus is not None and corpus.fingerprint == fingerprint else None


def _fingerprint(source: Source, tokenizer: Tokenizer, settings: Sequence[object]) -> str:
    """Return a hash of all that decides the tokens: files with their sizes and times, tokenizer, and settings."""
    digest = hashlib.sha256(json.dumps([*settings, tokenizer.sha256, tokenizer.end]).encode())
    for file in source.files:
        status = file.stat()
        digest.update(f"\n{file.absolute()} {status.st_size} {status.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Passages by the batch: `BATCH_BYTES` of text, so that making tokens keeps all threads busy."""
    batch: list[Passage] = []
    size = 0
    for passage in passages:
        batch.append(passage)
        size += len(passage.data)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


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
