"""origin.json and import.json of a store: refused, or the same after another writing."""

from __future__ import annotations

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.errors import StoreCorruptError, StorePermissionError
from luwu.store.folders import ORIGIN_NAME, UNFINISHED_IMPORT_NAME
from luwu.store.origin import read_origin, write_journal
from luwu.store.sealed_json import sealed

ORIGIN = {
    "origin": {"kind": "safetensors", "files": [["a", 1, 2]], "manifest_crc32": 5},
    "chunks": 3,
    "values": "0011aabb",
}


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    folder = scratch()
    path = folder / (ORIGIN_NAME if mode & 1 else UNFINISHED_IMPORT_NAME)
    put(path, edited(ORIGIN, given, sealed if mode & 2 else dict), mode // 4)
    origin = allowing((StoreCorruptError, StorePermissionError), lambda: read_origin(path))
    if origin is None:
        return
    assert origin.chunks >= 0, "an import begins at a chunk"
    write_journal(folder, origin)
    again = read_origin(folder / UNFINISHED_IMPORT_NAME)
    assert repr(again) == repr(origin), "an origin is read as it was written"
