"""manifest.json of a store, with its checksum or without: refused, or the same after another writing."""

from __future__ import annotations

import json

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.core.manifest import Manifest, first_difference
from luwu.errors import StoreCorruptError, StoreFormatError, StorePermissionError
from luwu.store.folders import MANIFEST_NAME, read_identity
from luwu.store.sealed_json import sealed

MANIFEST = {
    "dtype": "bfloat16",
    "chunk_elements": 2048,
    "blocks": [
        {
            "name": "<root>",
            "trainable": True,
            "parameters": [{"name": "a", "shape": [2, 3], "offset": 0, "numel": 6, "aliases": ["b"]}],
            "elements": 2048,
            "first": 0,
            "dtype": "float32",
        },
        {"name": "frozen", "trainable": False, "parameters": [], "elements": 1},
    ],
    "optimizer": "adamw",
}
IDENTITY = {"format": 3, "uuid": "0" * 32, "stripes": 1, "manifest": MANIFEST}


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    if mode % 2:
        found = _in_store(given, mode)
    else:
        text = edited(MANIFEST, given).decode("utf-8", "replace")
        found = allowing(StoreFormatError, lambda: Manifest.from_json(text))
    if found is None:
        return
    again = Manifest.from_json(found.to_json())
    assert again == found, "a manifest is read as it was written"
    assert first_difference(found, again, with_chunks=True) is None, "a manifest does not differ from itself"


def _in_store(given: Input, mode: int) -> Manifest | None:
    folder = scratch()
    put(folder / MANIFEST_NAME, edited(IDENTITY, given, sealed if mode & 2 else dict), mode // 4)
    identity = allowing((StoreCorruptError, StoreFormatError, StorePermissionError), lambda: read_identity(folder))
    if identity is None:
        return None
    assert json.dumps(identity.uuid) and identity.stripes >= 1, "an identity has a name and folders"
    return identity.manifest
