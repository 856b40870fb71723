"""standby.json of a store: refused, or the same after another writing."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.errors import ConfigError, StoreCorruptError, StoreFormatError, StorePermissionError
from luwu.store.sealed_json import sealed
from luwu.store.standby_record import STANDBY_NAME, read_standby, require_alone, write_standby

RECORD = {"format": 1, "follows": True, "other": "luwu://one:1", "in_sync": True, "generation": 1}


def _may_train(folder: Path) -> bool:
    require_alone(folder)
    return True


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    folder = scratch()
    document = {**RECORD, "follows": bool(mode & 1), "in_sync": bool(mode & 2)}
    put(folder / STANDBY_NAME, edited(document, given, sealed if mode & 4 else dict), mode // 16)
    damaged = (StoreCorruptError, StoreFormatError, StorePermissionError)
    record = allowing(damaged, lambda: read_standby(folder))
    alone = allowing((*damaged, ConfigError), lambda: _may_train(folder))
    if record is None:
        assert not alone, "a store whose record is refused is not trained"
        return
    assert bool(alone) == (not record.follows and not record.in_sync), "a store is trained by one server"
    write_standby(folder, record)
    assert read_standby(folder) == record, "a record is read as it was written"
