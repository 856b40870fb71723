"""Notes of an import beside the values: a flipped bit in them is named, and is not taken for another model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.pretrained import save

from luwu.errors import StoreCorruptError
from luwu.models.importing import import_pretrained
from luwu.store.dcp_output import export_dcp
from luwu.store.exporting import export_safetensors
from luwu.store.folders import ORIGIN_NAME, UNFINISHED_IMPORT_NAME
from luwu.store.origin import Origin, read_origin, require_model_files, write_journal
from luwu.store.sealed_json import CHECKSUM_NAME
from luwu.store.upkeep import info
from luwu.store.verifying import verify
from luwu.train.reading import find_readable


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of an imported model."""
    save("llama", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    return tmp_path / "store"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_a_damaged_file_of_the_model_is_refused_by_who_uses_it(store: Path) -> None:
    config = store / "model" / "config.json"
    whole = info([store])
    assert whole.model == ("LlamaForCausalLM",) and whole.findings == () == verify([store]).findings
    flip(config, 8 * config.read_bytes().index(b"Llama"))
    said = r"model/config\.json: expected the file that was imported"
    for use in (
        lambda: export_safetensors([store], store.parent / "out"),
        lambda: export_dcp([store], store.parent / "dcp"),
        lambda: find_readable([store]),
    ):
        with pytest.raises(StoreCorruptError, match=said):
            use()
    found = info([store])
    assert (found.model, found.origin, len(found.findings)) == ((), (), 1)
    assert verify([store]).findings == found.findings


def test_a_file_of_the_model_that_is_missing_is_named(store: Path) -> None:
    (store / "model" / "config.json").unlink()
    with pytest.raises(StoreCorruptError, match=r"model/config\.json: expected .* found no such file"):
        require_model_files(store)


def test_a_damaged_origin_is_named(store: Path) -> None:
    origin = store / ORIGIN_NAME
    flip(origin, 8 * origin.read_bytes().index(b"safetensors"))
    with pytest.raises(StoreCorruptError, match=r"origin\.json: expected crc32c"):
        import_pretrained(store.parent / "in", [store])
    assert "origin.json: expected crc32c" in info([store]).findings[0]


def test_somebody_who_edits_the_file_removes_its_checksum(store: Path) -> None:
    text = (store / ORIGIN_NAME).read_text().replace("/in/", "/moved/")
    (store / ORIGIN_NAME).write_text("".join(line for line in text.splitlines(True) if CHECKSUM_NAME not in line))
    assert info([store]).findings == ()
    assert "/moved/" in info([store]).origin[0]


def test_files_from_before_there_were_checksums_are_read(store: Path) -> None:
    document = json.loads((store / ORIGIN_NAME).read_text())
    (store / ORIGIN_NAME).write_text(json.dumps({"origin": document["origin"]}))
    flip(store / "model" / "config.json", 0)
    require_model_files(store)
    before = (store / ORIGIN_NAME).read_text(), (store / "model" / "config.json").read_bytes()
    assert import_pretrained(store.parent / "in", [store]).finished_before
    after = (store / ORIGIN_NAME).read_text(), (store / "model" / "config.json").read_bytes()
    assert after == before, "a finished import is not repeated"


def test_every_flipped_bit_of_a_journal_is_found(tmp_path: Path) -> None:
    journal = tmp_path / UNFINISHED_IMPORT_NAME
    write_journal(tmp_path, Origin({"files": [["numbers", 1, 2]]}, 3))
    content = journal.read_bytes()
    for bit in range(len(content) * 8):
        flip(journal, bit)
        with pytest.raises(StoreCorruptError, match=r"import\.json: "):
            read_origin(journal)
        journal.write_bytes(content)
