"""The folders of a store: its manifest file, and what is said where they cannot be used."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from luwu.core.errors import (
    LuwuError,
    StoreCorruptError,
    StoreEmptyError,
    StoreFormatError,
)
from luwu.core.files import sync_folder, sync_path, whole_file, write_all
from luwu.core.json_fields import MALFORMED, explained, read_object, read_text, whole, words
from luwu.core.manifest import DEFAULT_OPTIMIZER, Manifest, first_difference
from luwu.core.quantities import check_name, shown
from luwu.core.words import counted
from luwu.store.parts import is_there, manifest_copy, no_permission, refused, stripe_of
from luwu.store.sealed_json import require_unchanged, sealed

MANIFEST_NAME = "manifest.json"
RESTORE_MANIFEST = "put the file back from snapshots/STEP or a copy; then `luwu store verify` reads the store"
MANIFEST_FORMAT = 4
"""Newest format that is read. A manifest is written in the oldest format that can express it: 2 for another optimizer
than AdamW, 3 for float16 blocks, or blocks of several dtypes."""

COMMIT_NAME = "commit.luwu"
MOST_FOLDERS = 2**16
"""Bound of the folders that a store is striped over."""

LOCK_NAME = "luwu.lock"
STORE_LOCK_NAME = "lock"
UNFINISHED_IMPORT_NAME = "import.json"
"""File in the first folder while an import writes the store's first values."""
ORIGIN_NAME = "origin.json"
"""File in the first folder after an import: it names the source of the store's first values."""

MODEL_FOLDER = "model"
"""Folder in the first folder after an import: the model's files beside its parameters."""


@dataclass(frozen=True)
class StoreIdentity:
    """Contents of the manifest file: the store's id, its number of folders, and its model."""

    uuid: str
    stripes: int
    manifest: Manifest


def make_folder(folder: Path) -> None:
    """Make a folder that this user can write to.

    Raises:
        ConfigError: its name cannot be written down.
        StorePermissionError, StoreSpaceError, StoreFormatError, StoreError: it cannot be made.
    """
    check_name(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused("make", folder, error) from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise no_permission("write in", folder, "permission denied")


def no_store(folders: list[Path]) -> StoreFormatError:
    """The error for folders of which the first has no manifest file, where there should be a store."""
    for other in folders[1:]:
        if is_there(other / MANIFEST_NAME):
            return StoreFormatError(
                f"{folders[0]} holds no {MANIFEST_NAME}, and {other} does, the first folder of its store; name "
                f"the folders in their order, {other} first"
            )
    stripe = stripe_of(folders[0])
    if stripe == 0:
        return StoreFormatError(
            f"{folders[0] / MANIFEST_NAME} is missing, and the rest of a store is there; put the file back from "
            f"{manifest_copy(folders[0])}: it never changes; then `luwu store verify` says whether the store is whole"
        )
    if stripe is not None or is_there(folders[0] / COMMIT_NAME):
        return StoreFormatError(
            f"{folders[0]} holds no {MANIFEST_NAME}, only {COMMIT_NAME}: it is folder 2 or a later one of a striped "
            "store; name all folders of the store in their order"
        )
    return StoreFormatError(
        f"{folders[0]} holds no store: {MANIFEST_NAME} is missing there; name the folder that --store named "
        "(by default `store` in the run folder)"
    )


def holds_part(folder: Path) -> bool:
    """Return true where a folder holds files of a store, its manifest file or others."""
    return is_there(folder / MANIFEST_NAME) or is_there(folder / COMMIT_NAME) or stripe_of(folder) is not None


def require_stripes(folders: list[Path], stripes: int, kind: type[LuwuError] = StoreCorruptError) -> None:
    """Raise an error of this kind if a store lies in another number of folders than were named."""
    if stripes != len(folders):
        raise kind(
            f"the store at {folders[0]} is striped over {counted(stripes, 'folder')}, found {len(folders)} named; "
            "name the same folders in the same order as when it was made"
        )


def no_values(folder: Path) -> StoreEmptyError:
    """The error for a store that is to be read and was never written."""
    return StoreEmptyError(f"the store at {folder} has no values yet; train or import into it first")


def read_identity(folder: Path) -> StoreIdentity | None:
    """Read a store's manifest file, or None where there is none.

    Raises:
        ConfigError: the folder's name cannot be written down.
        StoreCorruptError, StoreFormatError: the file is damaged or of a newer format.
        StorePermissionError, StoreError: it cannot be read.
    """
    check_name(folder)
    path = folder / MANIFEST_NAME
    try:
        raw = read_object(read_text(path))
        version = whole(raw, "format", 1, 2**31)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise refused("read", path, error) from error
    except MALFORMED as error:
        raise StoreCorruptError(
            f"{path}: expected JSON with a format number, found {explained(error)}; {RESTORE_MANIFEST}"
        ) from error
    if version > MANIFEST_FORMAT:
        raise StoreFormatError(
            f"{path}: manifest format {version}; this LuWu reads up to {MANIFEST_FORMAT}: use the LuWu that wrote it"
        )
    require_unchanged(path, raw, ("format", "uuid", "stripes", "manifest"))
    try:
        manifest = Manifest.from_json(json.dumps(raw["manifest"]))
        return StoreIdentity(_uuid_from(raw["uuid"]), whole(raw, "stripes", 1, MOST_FOLDERS), manifest)
    except StoreFormatError as error:
        raise StoreCorruptError(f"{path}: {str(error).removeprefix('manifest: ')}") from error
    except MALFORMED as error:
        raise StoreCorruptError(
            f"{path}: expected uuid, stripes and manifest, found {explained(error)}; {RESTORE_MANIFEST}"
        ) from error


def _uuid_from(value: object) -> str:
    uuid = words(value, "uuid")
    if re.fullmatch("[0-9a-f]{32}", uuid) is None:
        raise ValueError(f"uuid {shown(uuid)}, which is not 32 hexadecimal digits")
    return uuid


def has_store(folders: list[Path], manifest: Manifest) -> bool:
    """Return True where these folders have a store for this manifest, of any chunk size. Raises as `read_identity`."""
    identity = read_identity(folders[0])
    return identity is not None and first_difference(manifest, identity.manifest) is None


def write_identity(folders: list[Path], identity: StoreIdentity) -> None:
    """Write the manifest file so that a crash or a power cut leaves either all of it or nothing.

    It is written last: before it all folders of the store are durable.

    Raises:
        StoreSpaceError, StorePermissionError, StoreError: it cannot be written.
    """
    document = {
        "format": _format_of(identity.manifest),
        "uuid": identity.uuid,
        "stripes": identity.stripes,
        "manifest": json.loads(identity.manifest.to_json()),
    }
    for folder in folders:
        try:
            sync_path(folder)
        except OSError as error:
            raise refused("sync", Path(error.filename), error) from error
    write_json(folders[0] / MANIFEST_NAME, sealed(document))


def _format_of(manifest: Manifest) -> int:
    if manifest.names_masters:
        return 4
    if "float16" in manifest.dtypes or len(manifest.dtypes) > 1:
        return 3
    return 1 if manifest.optimizer == DEFAULT_OPTIMIZER else 2


def remove_file(path: Path) -> None:
    """Remove a file if it is there, durably.

    Raises:
        StorePermissionError, StoreError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise refused("remove", path, error) from error


def write_json(path: Path, document: object) -> None:
    """Write a JSON file so that a crash or a power cut leaves either all of it or what was there before.

    Raises:
        StoreSpaceError, StorePermissionError, StoreError: it cannot be written.
    """
    try:
        with whole_file(path) as file:
            write_all(file, json.dumps(document, indent=1).encode())
    except OSError as error:
        raise refused("write", path, error) from error
