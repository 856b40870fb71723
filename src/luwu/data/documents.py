"""Documents of files, read a piece at a time: a text file is one, a line of JSONL, a row of Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from luwu.core.errors import DataError
from luwu.data.source import READ_ERRORS, check_parquet, kind_of, open_bytes, refuse

PIECE_BYTES = 1 << 20
"""Bytes of the pieces that a text file is read in, so that it is never held whole."""

ROWS = 256
"""Rows of Parquet that are decoded at a time."""

FIELDS_SHOWN = 20


class Piece(NamedTuple):
    """A part of a document, UTF-8 unless its file is not; `ends` after the last. `place`: share of the file read."""

    data: bytes
    ends: bool
    place: float


@dataclass
class Counts:
    """Documents seen, and among them those that were left out because they are empty or white space."""

    documents: int = 0
    blank: int = 0


def read_documents(file: Path, field: str) -> Iterator[Piece]:
    """The documents of one file in their order; `field` names the text in JSONL and Parquet.

    Raises:
        DataError: naming the file, and the line or the row, that cannot be used.
    """
    kind = kind_of(file)
    if kind == "parquet":
        yield from _parquet(file, field)
    elif kind == "jsonl":
        yield from _jsonl(file, field)
    else:
        yield from _text(file)


def count_documents(pieces: Iterator[Piece], counts: Counts, *, keep_blank: bool) -> Iterator[Piece]:
    """Count documents, and leave out those that are empty or white space unless ``keep_blank``."""
    held: list[Piece] = []
    begun = False
    for piece in pieces:
        begun = begun or keep_blank or bool(piece.data.strip())
        held.append(piece)
        if begun:
            yield from held
            held.clear()
        if piece.ends:
            counts.documents += 1
            counts.blank += not begun
            held.clear()
            begun = False


def _text(file: Path) -> Iterator[Piece]:
    size = max(1, file.stat().st_size)
    try:
        with open_bytes(file) as stream:
            raw = getattr(stream, "fileobj", stream)  # a gzip stream counts decompressed bytes
            while data := stream.read(PIECE_BYTES):
                yield Piece(data, False, raw.tell() / size)
    except READ_ERRORS as error:
        refuse(error, file)
    yield Piece(b"", True, 1.0)


def _jsonl(file: Path, field: str) -> Iterator[Piece]:
    size = max(1, file.stat().st_size)
    try:
        with open_bytes(file) as stream:
            raw = getattr(stream, "fileobj", stream)
            for number, line in enumerate(stream, start=1):
                if not line.isspace():
                    yield Piece(_line_text(file, number, line, field), True, raw.tell() / size)
    except READ_ERRORS as error:
        refuse(error, file)


def _line_text(file: Path, number: int, line: bytes, field: str) -> bytes:
    """Return the text of one line; lone surrogates, which JSON can escape and UTF-8 cannot hold, become U+FFFD."""
    where = f"data {file}:{number}"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: expected a JSON object, found what is not JSON ({error}); mend the line") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, found {_kind(record)}; give each line its own object")
    if field not in record:
        raise DataError(f"{where}: expected the field {field!r}, found {_listed(record)}; name it with --text-field")
    text = record[field]
    if text is None:
        return b""
    if not isinstance(text, str):
        raise DataError(f"{where}: expected text in the field {field!r}, found {_kind(text)}; choose another field")
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _parquet(file: Path, field: str) -> Iterator[Piece]:
    check_parquet(file)
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(file, pre_buffer=False, page_checksum_verification=True) as table:
            _check_column(file, table.schema_arrow, field)
            rows, seen = max(1, table.metadata.num_rows), 0
            for group in range(table.num_row_groups):
                for batch in table.iter_batches(ROWS, row_groups=[group], columns=[field], use_threads=False):
                    for text in batch.column(0).cast(arrow.large_string()).to_pylist():
                        seen += 1
                        yield Piece((text or "").encode(), True, seen / rows)
    except arrow.ArrowException as error:
        raise DataError(f"data {file}: expected a Parquet file, found what cannot be read as one ({error})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"data {file}: expected UTF-8 in the column {field!r}, found {error.object!r:.60}") from None
    except READ_ERRORS as error:
        refuse(error, file)


def _check_column(file: Path, schema: Any, field: str) -> None:
    import pyarrow as arrow

    if field not in schema.names:
        raise DataError(
            f"data {file}: expected a column {field!r}, found {_listed(schema.names)}; name it with --text-field"
        )
    kind = schema.field(field).type
    text = kind.value_type if arrow.types.is_dictionary(kind) else kind
    if not (arrow.types.is_string(text) or arrow.types.is_large_string(text) or arrow.types.is_string_view(text)):
        raise DataError(f"data {file}: expected text in the column {field!r}, found {kind}; choose another column")


def _listed(names: Any) -> str:
    shown = [repr(name) for name in names]
    if not shown:
        return "none"
    return ", ".join(shown[:FIELDS_SHOWN]) + (f" and {len(shown) - FIELDS_SHOWN} more" * (len(shown) > FIELDS_SHOWN))


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")
