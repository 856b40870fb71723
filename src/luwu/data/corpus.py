"""Find text, hold some of it back for validation, and keep it as one file that every worker maps.

`prepare` writes two files into the run folder: corpus.bin, the training bytes followed by the validation bytes, and
corpus.json, which says where one ends. Workers map corpus.bin, so they share the page cache and hold no copy.
"""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from luwu.errors import DataError

PASSAGE_BYTES = 64 * 1024
"""The text is cut into passages of this size (smaller for short texts); whole passages go to training or validation."""

HELD_BACK = 5
"""Passages that a short text is to hold back, so that validation sees more than one place of it."""

PROBE_BYTES = 4096
"""A file with a zero byte this early is not text."""

STDLIB_SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Source:
    """Text files in a fixed order. `total_bytes` counts one newline after each file."""

    name: str
    files: tuple[Path, ...]
    total_bytes: int


@dataclass(frozen=True)
class Corpus:
    """What corpus.json says. `entropy` is that of single bytes in nats: what a model without context can reach."""

    name: str
    files: int
    train_bytes: int
    validation_bytes: int
    entropy: float

    @staticmethod
    def load(folder: Path) -> Corpus | None:
        """The corpus prepared in `folder`, None if there is none; DataError if corpus.bin is not what was written."""
        try:
            corpus = Corpus(**json.loads((folder / "corpus.json").read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{folder / 'corpus.json'}: cannot be used ({error}); {_REBUILD}") from None
        path, expected = folder / "corpus.bin", corpus.train_bytes + corpus.validation_bytes
        found = path.stat().st_size if path.exists() else 0
        if found != expected:
            raise DataError(f"{path}: expected {expected} bytes, found {found}; {_REBUILD}")
        return corpus

    def map(self, folder: Path) -> tuple[Bytes, Bytes]:
        """The training and the validation bytes, uint8, mapped read-only."""
        data = np.memmap(folder / "corpus.bin", dtype=np.uint8, mode="r")
        return data[: self.train_bytes], data[self.train_bytes :]


_REBUILD = "delete corpus.json to have it read again from the data"


def find_text(path: str | None) -> Source:
    """The text files of a file or folder, or of the Python standard library if `path` is None. Nothing is written.

    Raises:
        DataError: the path is missing, unreadable, not text, or holds no text.
    """
    if path is None:
        root = Path(sysconfig.get_path("stdlib"))
        name, found = "python-stdlib", _stdlib_files(root)
    else:
        root = Path(path)
        name, found = root.stem or "text", _files_below(root)
    files = [file for file in found if _is_text(file, only=file == root)]
    sizes = [file.stat().st_size for file in files]
    if not sum(sizes):
        raise DataError(f"data {root}: expected at least one file with text, found none; choose another with --data")
    return Source(name, tuple(files), sum(sizes) + len(files))


def prepare(source: Source, folder: Path, seq: int, validation_fraction: float) -> Corpus:
    """Write corpus.bin and corpus.json into `folder`.

    One passage in every round(1 / validation_fraction) is held back, always the same ones. The sidecar is written
    last, so a corpus that has one is whole.

    Raises:
        DataError: too little text for sequences of `seq` bytes, or a file that cannot be read.
    """
    (folder / "corpus.json").unlink(missing_ok=True)
    every = round(1 / validation_fraction)
    passage = check_length(source, seq, validation_fraction)
    counts = np.zeros(256, dtype=np.int64)
    partial = folder / "corpus.bin.partial"
    with partial.open("wb") as train, tempfile.TemporaryFile(dir=folder) as held_back:
        for index, data in enumerate(_passages(source, passage)):
            (held_back if index % every == every // 2 else train).write(data)
            counts += np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
        train_bytes, validation_bytes = train.tell(), held_back.tell()
        held_back.seek(0)
        shutil.copyfileobj(held_back, train)
    partial.replace(folder / "corpus.bin")
    corpus = Corpus(source.name, len(source.files), train_bytes, validation_bytes, _entropy(counts))
    sidecar = folder / "corpus.json.partial"
    sidecar.write_text(json.dumps(asdict(corpus), indent=1) + "\n")
    sidecar.replace(folder / "corpus.json")
    return corpus


def check_length(source: Source, seq: int, validation_fraction: float) -> int:
    """Bytes in a passage, if the text is long enough to train and to validate on.

    Raises:
        DataError: some passage could not hold one sequence and its target.
    """
    every = round(1 / validation_fraction)
    needed = every * (seq + 1)
    if source.total_bytes < needed:
        raise DataError(
            f"data {source.name}: expected at least {needed} bytes for sequences of {seq}, "
            f"found {source.total_bytes}; use more text or a smaller --seq"
        )
    return max(seq + 1, min(PASSAGE_BYTES, source.total_bytes // (every * HELD_BACK)))


def _stdlib_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in STDLIB_SKIPPED)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _files_below(root: Path) -> Iterator[Path]:
    """The file itself, or all files below a folder but hidden ones, in an order that depends on names alone."""
    if not root.is_dir():
        yield root
        return
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (file for file in visible if file.is_file())


def _is_text(file: Path, only: bool) -> bool:
    """Whether a file looks like text; a file that the user named must."""
    try:
        with file.open("rb") as stream:
            text = b"\0" not in stream.read(PROBE_BYTES)
    except OSError as error:
        _refuse(error, file)
    if only and not text:
        raise DataError(f"data {file}: expected text, found binary data; choose another file with --data")
    return text


def _passages(source: Source, size: int) -> Iterator[bytes]:
    """The files one after another, a newline after each, cut into passages of `size` bytes."""
    pending = bytearray()
    for file in source.files:
        try:
            with file.open("rb") as stream:
                while data := stream.read(1 << 20):
                    pending += data
                    while len(pending) >= size:
                        yield bytes(pending[:size])
                        del pending[:size]
        except OSError as error:
            _refuse(error, file)
        pending += b"\n"
    if pending:
        yield bytes(pending)


def _refuse(error: OSError, file: Path | None = None) -> NoReturn:
    raise DataError(
        f"data {file or error.filename}: cannot be read: {error.strerror}; check the path and its permissions"
    ) from None


def _entropy(counts: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
