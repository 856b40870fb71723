"""A store of format 2, made by the code that wrote that format, is read, verified and trained on to the same bits.

`stores/format2.tar.gz` has two folders, a and b, of `manifest()`: three steps of `Worker` with a snapshot of step 2, as
that code left them. The digests are what it read from its store at steps 2, 3 and, two steps later, 5.
"""

from __future__ import annotations

import dataclasses
import tarfile
from pathlib import Path

import pytest
from tests.integration.fabric_worker import GROUP, NumpyWorker, small_manifest

import luwu
from harness.stored import digest_of
from luwu.core.manifest import Manifest
from luwu.errors import StoreCorruptError
from luwu.store import snapshots, upkeep
from luwu.store.opening import open_reader
from luwu.store.verifying import verify

ARCHIVE = Path(__file__).parent / "stores/format2.tar.gz"
DIGESTS = {
    2: "d120bc0423fd71fba32c55aa2e3312eddd222c3b1f98bd13f98ba871e5919a2b",
    3: "47fa884fa56456f1c328b4844f6ead918e453ef13b27e58da8aec71c22732b8e",
    5: "7cdebe547aa125444909756074b2e3d0890cfcd8d33a1de2c15ab4a608758dfa",
}
MEMORY = 64 << 20


class Worker(NumpyWorker):
    """Pushes only trainable blocks."""

    def step(self, *arguments: object, **settings: object) -> bool:
        self.endpoint.begin([GROUP], None)
        for number in reversed(range(len(self.manifest.blocks))):
            values = self.read(number)
            if self.manifest.blocks[number].trainable:
                self.arena[: values.size] = self.gradient(values)
                self.endpoint.wait(self.endpoint.push(number, 0))
        committed = self.endpoint.wait(self.endpoint.commit()) == 1
        self.session.count_step(committed)
        return committed


def manifest() -> Manifest:
    """A root and three blocks of 100 elements, of which the last is frozen."""
    made = small_manifest(blocks=3, elements=100)
    return dataclasses.replace(made, blocks=(*made.blocks[:3], dataclasses.replace(made.blocks[3], trainable=False)))


def digest(folders: list[Path]) -> str:
    """SHA-256 of the step and of everything that is committed."""
    reader, found = open_reader(folders)
    return digest_of(reader, len(found.blocks), str(reader.step))


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Unpack the store of format 2, and return its folders."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return [tmp_path / "a", tmp_path / "b"]


def train(folders: list[Path], steps: int) -> None:
    with luwu.open(folders[0].parent / "run", stores=folders, memory=MEMORY) as session:
        worker = Worker(session, manifest())
        for _ in range(steps):
            assert worker.step()


def test_a_store_of_format_2_is_read_as_it_is(folders: list[Path]) -> None:
    before = (folders[0] / "commit.luwu").read_bytes()
    found = upkeep.info(folders)
    assert (found.step, found.findings, found.snapshots) == (3, (), (2,))
    report = verify(folders)
    assert (report.step, report.damaged, report.findings) == (3, 0, ())
    assert digest(folders) == DIGESTS[3]
    assert digest(snapshots.snapshot_folders(folders, 2)) == DIGESTS[2]
    assert (folders[0] / "commit.luwu").read_bytes() == before
    assert not (folders[1] / "commit.luwu").exists()


def test_a_store_of_format_2_is_trained_on_to_the_bits_that_its_code_reached(folders: list[Path]) -> None:
    train(folders, 2)
    assert digest(folders) == DIGESTS[5]
    assert digest(snapshots.snapshot_folders(folders, 2)) == DIGESTS[2]
    report = verify(folders)
    assert (report.step, report.damaged, report.findings) == (5, 0, ())
    assert (folders[1] / "commit.luwu").exists()


def test_a_snapshot_of_format_2_is_restored_into_a_store_of_format_3(folders: list[Path]) -> None:
    train(folders, 1)
    snapshots.restore(folders, 2)
    assert digest(folders) == DIGESTS[2]
    train(folders, 3)
    assert digest(folders) == DIGESTS[5]


def test_a_store_of_format_2_whose_records_are_empty_is_not_taken_for_a_fresh_one(folders: list[Path]) -> None:
    (folders[0] / "commit.luwu").write_bytes(bytes(8192))
    for look in (lambda: train(folders, 1), lambda: upkeep.info(folders)):
        with pytest.raises(StoreCorruptError, match=r"commit\.luwu is empty, and there are chunks"):
            look()


def test_the_only_record_of_format_2_that_is_damaged_is_not_taken_for_none(folders: list[Path]) -> None:
    path = folders[0] / "commit.luwu"
    data = bytearray(path.read_bytes())
    data[:4096] = bytes(4096)  # as after an import: the other slot was never written
    data[4096 + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorruptError, match="none of the commit records is valid"):
        train(folders, 1)
