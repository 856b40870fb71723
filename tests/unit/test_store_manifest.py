"""Manifest files that are damaged: one typed error names the file, before anything is listed by what they say.

Stores were written without a checksum in this file, so what it says is checked beside that.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS, BlockManifest, Manifest, ParameterManifest
from luwu.errors import StoreCorruptError, StoreFormatError
from luwu.store.folders import MANIFEST_NAME, StoreIdentity, read_identity, write_identity
from luwu.store.sealed_json import CHECKSUM_NAME

PARAMETER = ParameterManifest("weight", (4, 8), 0, 32)
MANIFEST = Manifest("float32", DEFAULT_CHUNK_ELEMENTS, (BlockManifest("<root>", True, (PARAMETER,), 32),))
IDENTITY = StoreIdentity("0" * 32, 1, MANIFEST)


@pytest.fixture
def sealed_file(tmp_path: Path) -> Path:
    """A good store's manifest file."""
    write_identity([tmp_path], IDENTITY)
    return tmp_path / MANIFEST_NAME


@pytest.fixture
def file(sealed_file: Path) -> Path:
    """A manifest file without its checksum, as it was written before there was one."""
    first, checksum, *others = sealed_file.read_text().splitlines(keepends=True)
    assert CHECKSUM_NAME in checksum
    sealed_file.write_text("".join([first, *others]))
    return sealed_file


def test_a_manifest_file_comes_back(file):
    assert read_identity(file.parent) == IDENTITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"format": 1', '"format": 1e400'),
        ('"format": 1', '"format": NaN'),
        ('"format": 1', '"format": "one"'),
        ('"format": 1', '"format": 0'),
        ('"format": 1', f'"format": {"9" * 5000}'),
        ('"format": 1', f'"more": {"[" * 200_000}'),
        ('"format": 1', '"form\udcffat": 1'),
        ('"stripes": 1', '"stripes": -1'),
        ('"stripes": 1', '"stripes": 1e400'),
        ('"uuid": "0', '"uuid": "\\ud800'),
        ('"uuid": "0', '"uuid": "A'),
        ('"uuid": "0', '"uuid": "'),
        ('"format": 1', '"format": 1, "crc31c": "00000000"'),
        ('"chunk_elements": 262144', '"chunk_elements": -1'),
        ('"chunk_elements": 262144', '"chunk_elements": 0'),
        ('"chunk_elements": 262144', '"chunk_elements": 1e400'),
        ('"chunk_elements": 262144', f'"chunk_elements": {2**62}'),
        ('"elements": 32', '"elements": -32'),
        ('"elements": 32', '"elements": 0'),
        ('"elements": 32', f'"elements": {2**62}'),
        ('"elements": 32', '"elements": 32.5'),
        ('"first": 0', '"first": -1'),
        ('"offset": 0', '"offset": -1'),
        ('"numel": 32', f'"numel": {10**30}'),
        ("4,", "-4,"),
        ('"weight"', '"\\ud800"'),
        ('"<root>"', '"\\ud800"'),
        ('"<root>"', "3"),
        ('"aliases": []', '"aliases": ["\\udfff"]'),
        ('"aliases": []', '"aliases": "weight"'),
        ('"dtype": "float32"', '"dtype": "float64"'),
        ('"trainable": true', '"trainable": "no"'),
        ('"adamw"', '"\\ud800"'),
    ],
)
def test_damage_is_found_before_it_is_believed(file, before, after):
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1), errors="surrogateescape")
    with pytest.raises(StoreCorruptError) as refusal:
        read_identity(file.parent)
    assert str(refusal.value).startswith(f"{file}: expected ")
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 600


def low(optimizer: str = "adamw", trainable: bool = True, **more: bool) -> StoreIdentity:
    """A store of one bfloat16 block."""
    block = BlockManifest("<root>", trainable, (PARAMETER,), 32)
    return StoreIdentity("0" * 32, 1, Manifest("bfloat16", DEFAULT_CHUNK_ELEMENTS, (block,), optimizer, **more))


def test_a_store_of_remainders_says_so_and_an_earlier_luwu_refuses_it(tmp_path: Path) -> None:
    write_identity([tmp_path], low())
    raw = json.loads((tmp_path / MANIFEST_NAME).read_text())
    assert (raw["format"], raw["manifest"]["masters"]) == (4, "remainders")
    assert read_identity(tmp_path) == low()
    (tmp_path / MANIFEST_NAME).write_text((tmp_path / MANIFEST_NAME).read_text().replace("remainders", "halves"))
    with pytest.raises(StoreCorruptError, match="expected "):
        read_identity(tmp_path)


@pytest.mark.parametrize(
    ("identity", "whole", "version"),
    [
        (low(whole_masters=True), True, 1),
        (low("adam", whole_masters=True), True, 2),
        (low("adamw8bit"), False, 2),  # had remainders from the beginning
        (low(trainable=False), False, 1),
        (IDENTITY, False, 1),
    ],
)
def test_a_store_without_a_word_of_its_masters_has_those_of_its_time(
    tmp_path: Path, identity: StoreIdentity, whole: bool, version: int
) -> None:
    write_identity([tmp_path], identity)
    raw = json.loads((tmp_path / MANIFEST_NAME).read_text())
    assert raw["format"] == version and not {"masters", "whole_masters"} & set(raw["manifest"])
    found = read_identity(tmp_path)
    assert found == identity and found.manifest.whole_masters == whole


def test_a_flipped_bit_is_found(sealed_file):
    content = sealed_file.read_bytes()
    for bit in range(0, len(content) * 8, 5):  # of each byte one or two
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        sealed_file.write_bytes(damaged)
        with pytest.raises((StoreCorruptError, StoreFormatError)) as refusal:
            read_identity(sealed_file.parent)
        assert str(refusal.value).startswith(f"{sealed_file}: ")


def test_somebody_who_edits_the_file_is_told_what_to_do(sealed_file):
    text = sealed_file.read_text().replace('"weight"', '"bias"')
    sealed_file.write_text(text)
    with pytest.raises(StoreCorruptError, match=f"somebody edited the file.*remove the line with {CHECKSUM_NAME}"):
        read_identity(sealed_file.parent)
    sealed_file.write_text("".join(line for line in text.splitlines(keepends=True) if CHECKSUM_NAME not in line))
    assert read_identity(sealed_file.parent).manifest.blocks[0].parameters[0].name == "bias"


def test_other_spaces_are_no_damage(sealed_file):
    sealed_file.write_text(json.dumps(json.loads(sealed_file.read_text()), sort_keys=True))
    assert read_identity(sealed_file.parent) == IDENTITY


def test_blocks_may_not_have_more_chunks_than_can_be_listed():
    blocks = json.loads(MANIFEST.to_json())
    blocks["blocks"] = blocks["blocks"] * 3
    for block in blocks["blocks"]:
        block["elements"] = 2**37
    assert len(Manifest.from_json(json.dumps(blocks)).blocks) == 3
    blocks["chunk_elements"] = 2048
    blocks["blocks"] *= 2
    with pytest.raises(StoreFormatError, match=r"manifest: expected .* chunks"):
        Manifest.from_json(json.dumps(blocks))


def test_a_file_longer_than_any_is_not_read_into_memory(file):
    with file.open("r+b") as opened:
        opened.truncate(2**40)
    with pytest.raises(StoreCorruptError, match=r"manifest\.json: .*1099511627776 bytes, which are more than"):
        read_identity(file.parent)
