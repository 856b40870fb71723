"""The source of a store's first values: an import writes it to import.json, and to origin.json when it is done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from luwu.core.errors import StoreCorruptError
from luwu.core.json_fields import MALFORMED, explained, read_object, read_text, table, whole, words
from luwu.core.manifest import MOST_CHUNKS
from luwu.core.quantities import shown
from luwu.store.folders import MODEL_FOLDER, ORIGIN_NAME, UNFINISHED_IMPORT_NAME, write_json
from luwu.store.outputs import checksum
from luwu.store.parts import refused
from luwu.store.sealed_json import require_unchanged, sealed


@dataclass(frozen=True)
class Origin:
    """The facts that an import writes down.

    Attributes:
        source: identity of the source.
        chunks: the number of durable chunks while the import is not finished.
        files: CRC32C of each file of the model that the store keeps, by its name, in hexadecimal digits.
        values: CRC32C of the values as the source gave them, so far as ``chunks`` counts them or all of them, in
            hexadecimal digits; empty: not known.
    """

    source: Mapping[str, Any]
    chunks: int = 0
    files: Mapping[str, str] = field(default_factory=dict)
    values: str = ""


def read_origin(path: Path) -> Origin | None:
    """Read origin.json or import.json, or None where there is none.

    Raises:
        StoreCorruptError: the file is damaged.
        StorePermissionError, StoreError: it cannot be read.
    """
    try:
        raw = read_object(read_text(path))
        require_unchanged(path, raw, ("origin", "chunks", "files", "values"))
        return Origin(
            table(raw["origin"], "origin"),
            whole(raw, "chunks", 0, MOST_CHUNKS, 0),
            {name: words(value, "files") for name, value in table(raw.get("files", {}), "files").items()},
            _digits(raw.get("values", ""), "values"),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused("read", path, error) from error
    except MALFORMED as error:
        remedy = (
            "remove the folder and import again"
            if path.name == UNFINISHED_IMPORT_NAME
            else "restore the file, or remove it: the store then forgets where its first values came from"
        )
        raise StoreCorruptError(
            f"{path}: expected JSON that names an import's source, found {explained(error)}; {remedy}"
        ) from error


def _digits(value: object, name: str) -> str:
    """A CRC32C in hexadecimal digits, or nothing; raises ValueError."""
    if re.fullmatch("([0-9a-f]{8})?", words(value, name)) is None:
        raise ValueError(f"{name} {shown(value)}, which is not eight hexadecimal digits")
    return str(value)


def write_journal(folder: Path, origin: Origin) -> None:
    """Note how far an import has come; raises as `write_json`."""
    document = {"origin": dict(origin.source), "chunks": origin.chunks, "values": origin.values}
    write_json(folder / UNFINISHED_IMPORT_NAME, sealed(document))


def write_origin(folder: Path, source: Mapping[str, Any], values: str = "") -> None:
    """Note the source of a finished import, what its values and the model's files are; raises as `write_json`."""
    try:
        inside = (folder / MODEL_FOLDER).iterdir() if (folder / MODEL_FOLDER).exists() else ()
        kept = sorted(path for path in inside if path.is_file())
        files = {path.name: f"{checksum(path):08x}" for path in kept}
    except OSError as error:
        raise refused("read", folder / MODEL_FOLDER, error) from error
    write_json(folder / ORIGIN_NAME, sealed({"origin": dict(source), "files": files, "values": values}))


def require_model_files(folder: Path) -> None:
    """Compare the checksums of the files of an imported model that a store keeps; call it before they are used.

    Raises:
        StoreCorruptError: a file of the model, or origin.json, is damaged.
        StorePermissionError, StoreError: a file cannot be read.
    """
    origin = read_origin(folder / ORIGIN_NAME)
    for name, expected in origin.files.items() if origin is not None else ():
        path = folder / MODEL_FOLDER / name
        try:
            found = f"{checksum(path):08x}"
        except FileNotFoundError:
            found = "no such file"
        except OSError as error:
            raise refused("read", path, error) from error
        if found != expected:
            raise StoreCorruptError(
                f"{path}: expected the file that was imported, of CRC32C {expected}, found {found}; put it back from "
                f"the model, or, if it was changed on purpose, remove {folder / ORIGIN_NAME}: the store then forgets "
                "where its first values came from"
            )
