"""Find the files of a corpus: text, JSONL and Parquet, in an order that depends on their names alone."""

from __future__ import annotations

import gzip
import os
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal, NoReturn, cast

from luwu.core.errors import DataError

PROBE_BYTES = 4096
"""Bytes at the beginning of a file in which a zero byte says that it is not text."""

STDLIB_SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})

JSONL_SUFFIXES = (".jsonl", ".ndjson")

Kind = Literal["text", "jsonl", "parquet"]


@dataclass(frozen=True)
class Source:
    """Files in a fixed order. `total_bytes` is what they take on disk, and one newline after each."""

    name: str
    files: tuple[Path, ...]
    total_bytes: int

    @property
    def plain(self) -> bool:
        """True if the files are the text itself, so that `total_bytes` is its length."""
        return all(kind_of(file) == "text" and file.suffix != ".gz" for file in self.files)


def kind_of(file: Path) -> Kind:
    """Return the kind of a file by its name; ``.gz`` at the end is ignored."""
    name = file.name.removesuffix(".gz")
    if name.endswith(JSONL_SUFFIXES):
        return "jsonl"
    return "parquet" if name.endswith(".parquet") else "text"


def find_text(paths: str | Path | Sequence[str | Path] | None) -> Source:
    """The files of one or several files and folders, or of the Python standard library if `paths` is None.

    A folder gives all its files that hold text, hidden ones left out. Nothing is written.

    Raises:
        DataError: a path is missing, unreadable, not text, holds no text, or needs a package that is not there.
    """
    if paths is None:
        root = Path(sysconfig.get_path("stdlib"))
        return _source("python-stdlib", root, list(_stdlib_files(root)))
    roots = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not roots:
        raise DataError("data: expected at least one file or folder, found none")
    files: list[Path] = []
    for root in roots:
        found = [file for file in _files_below(root) if _is_text(file, only=file == root)]
        files += _source(root.stem, root, found).files
    return _source(roots[0].stem or "text", roots[0], files)


def open_bytes(file: Path) -> IO[bytes]:
    """The file's content as a stream, decompressed if its name ends with .gz."""
    return cast(IO[bytes], gzip.open(file, "rb")) if file.suffix == ".gz" else file.open("rb")


def refuse(error: Exception, file: Path | str | None = None) -> NoReturn:
    """Raise DataError for a file that cannot be read."""
    name = file or (error.filename if isinstance(error, OSError) else None)
    if isinstance(error, OSError) and error.strerror:
        why, remedy = error.strerror, "check the path and its permissions"
    else:
        why, remedy = str(error), "it is damaged or was not written to its end: get it again"
    raise DataError(f"data {name}: cannot be read: {why}; {remedy}") from None


READ_ERRORS = (OSError, EOFError, zlib.error)
"""Errors that reading a file, compressed or not, may raise."""


def _source(name: str, root: Path, files: list[Path]) -> Source:
    sizes = [file.stat().st_size for file in files]
    if not sum(sizes):
        raise DataError(
            f"data {root}: expected at least one file with text, found none (text, .jsonl or .parquet, each also .gz); "
            "choose another with --data"
        )
    return Source(name, tuple(files), sum(sizes) + len(files))


def _stdlib_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in STDLIB_SKIPPED)
        files = (Path(folder, name) for name in sorted(names) if name.endswith(".py"))
        yield from (file for file in files if _is_text(file, only=False))


def _files_below(root: Path) -> Iterator[Path]:
    """Return the file itself, or all files below a folder but hidden ones."""
    if not root.is_dir():
        if root.exists() and not root.is_file():
            raise DataError(
                f"data {root}: expected a file or a folder, found a pipe or a device, which cannot be read twice; "
                "write its content to a file"
            )
        yield root
        return
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (file for file in visible if file.is_file())


def _is_text(file: Path, only: bool) -> bool:
    """Return True if a file holds text, by its first bytes or its kind; a file that the user named must."""
    try:
        if kind_of(file) == "parquet":
            file.open("rb").close()
            check_parquet(file)
            return True
        with open_bytes(file) as stream:
            text = b"\0" not in stream.read(PROBE_BYTES)
    except READ_ERRORS as error:
        refuse(error, file)
    if only and not text:
        raise DataError(f"data {file}: expected text, found binary data; choose another file with --data")
    return text


def check_parquet(file: Path) -> None:
    """Check that Parquet can be read here; raises DataError, which says what to install."""
    if find_spec("pyarrow") is None:
        raise DataError(f"data {file}: Parquet needs the package pyarrow, found none; pip install pyarrow")
