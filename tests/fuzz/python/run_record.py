"""run.json of a store, and a worker's claim on it: refused, or the same after another writing."""

from __future__ import annotations

from tests.fuzz.python.support import Input, allowing, edited, put, scratch

from luwu.errors import ConfigError, StoreCorruptError, StoreFormatError, StorePermissionError
from luwu.store.run_record import RUN_NAME, Claim, Counts, RunRecord, check_claim, claim_store, read_record
from luwu.store.sealed_json import sealed

RECORD = {
    "id": "one",
    "folder": "/runs/one",
    "host": "here",
    "settings": {"model.layers": 2, "run.stores": ["a"]},
    "data": {"name": "text", "fingerprint": "f"},
    "first": {"step": 1, "attempts": 2, "rolled_back": 1},
}
CLAIM = {"run": RECORD, "takes_weights": False, "begun": True, "steps_made": 3}
OURS = Claim(RunRecord("one", "/runs/one", "here", {"model.layers": 3}, {"name": "text", "fingerprint": "g"}))


def test_one_input(data: bytes) -> None:
    given = Input(data)
    mode = given.number()
    claim = OURS
    if mode % 2:
        text = edited(CLAIM, given).decode("utf-8", "replace")
        found = allowing(ConfigError, lambda: Claim.from_json(text))
        if found is None:
            return
        claim = found
        assert Claim.from_json(claim.to_json()) == claim, "a claim is read as it was written"
    folder = scratch()
    document = {"format": 1, **RECORD}
    text_of_record = edited(document, Input(b"") if mode % 2 else given, sealed if mode & 2 else dict)
    put(folder / RUN_NAME, text_of_record, mode // 16)
    damaged = (StoreCorruptError, StoreFormatError, StorePermissionError)
    record = allowing(damaged, lambda: read_record(folder))
    counts = Counts(mode % 8, mode % 5, mode % 3)
    allowing((*damaged, ConfigError), lambda: check_claim(folder, claim))
    won = allowing((*damaged, ConfigError), lambda: claim_store(folder, claim, counts, imported=mode % 7 == 0))
    if won is None:
        return
    assert record is None or record.id == claim.run.id or claim.takes_weights, "a store stays with its run"
    assert read_record(folder) is not None, "a store that was claimed says whose it is"
