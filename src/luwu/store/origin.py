"""The source of a store's first values: an import writes it to import.json, and to origin.json when it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luwu.errors import StoreCorruptError
from luwu.store.folders import ORIGIN_NAME, UNFINISHED_IMPORT_NAME, refused, write_json
from luwu.store.json_fields import MALFORMED, explained, read_object, whole
from luwu.store.manifest import MOST_CHUNKS
from luwu.store.sealed_json import require_unchanged, sealed


@dataclass(frozen=True)
class Origin:
    """The facts that tell a source from others, and the number of durable chunks while the import is not finished."""

    source: Mapping[str, Any]
    chunks: int = 0


def read_origin(path: Path) -> Origin | None:
    """Read origin.json or import.json, or None where there is none.

    Raises:
        StoreCorruptError: the file is damaged.
        StorePermissionError, StoreError: it cannot be read.
    """
    try:
        raw = read_object(path.read_text(encoding="utf-8"))
        require_unchanged(path, raw, ("origin", "chunks"))
        return Origin(dict(raw["origin"]), whole(raw, "chunks", 0, MOST_CHUNKS, 0))
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


def write_journal(folder: Path, origin: Origin) -> None:
    """Note how far an import has come; raises as `write_json`."""
    write_json(folder / UNFINISHED_IMPORT_NAME, sealed({"origin": dict(origin.source), "chunks": origin.chunks}))


def write_origin(folder: Path, origin: Origin) -> None:
    """Note the source of a finished import; raises as `write_json`."""
    write_json(folder / ORIGIN_NAME, sealed({"origin": dict(origin.source)}))
