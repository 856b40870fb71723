"""Stores that are damaged, newer, too large or somebody else's: a typed error names the thing, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest
from tests.integration.udp import remote, udp_tree
from typer.testing import CliRunner

import luwu
from harness.small_disk import SmallDisk
from harness.stored import read_block
from luwu.cli.main import app
from luwu.errors import LuwuError, StoreCorruptError, StoreEmptyError, StoreFormatError, StoreSpaceError
from luwu.session.session import Session
from luwu.store import upkeep
from luwu.store.opening import open_reader
from luwu.store.values import StoredValues
from luwu.store.verifying import verify

MEMORY = 64 << 20
COMMIT_SLOT_BYTES = 4096
COMMIT_COPY_DISTANCE = 65536


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose store is at step 2."""
    with luwu.open(tmp_path, memory=MEMORY) as session:
        worker = NumpyWorker(session, small_manifest())
        worker.step()
        worker.step()
    return tmp_path


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def train_on(run: Path, **settings: object) -> Session:
    """Open the run again and take one step."""
    with luwu.open(run, memory=MEMORY, **settings) as session:  # type: ignore[arg-type]
        NumpyWorker(session, small_manifest()).step()
    return session


def test_a_bit_flipped_in_a_chunk_names_file_and_offset(run: Path) -> None:
    chunks = run / "store/version-0.luwu"  # step 2's
    data = bytearray(chunks.read_bytes())
    data[4096 + 10] ^= 4  # page 0, then the root's only chunk, whose parameters come first
    chunks.write_bytes(data)
    with pytest.raises(StoreCorruptError, match=r"version-0\.luwu at offset \d+ \(block '<root>', chunk 0, plane 0\)"):
        train_on(run)
    verified = CliRunner().invoke(app, ["store", "verify", str(run / "store")])
    assert verified.exit_code == 1
    assert "1 damaged chunk; the first:" in verified.output and "luwu snapshot restore" in verified.output


def test_a_file_that_is_removed_while_the_store_is_open_ends_the_run(run: Path) -> None:
    """Steps that are written to it would be lost when it is closed, and nobody would know before."""
    with luwu.open(run, memory=MEMORY) as session:
        worker = NumpyWorker(session, small_manifest())
        (run / "store/version-1.luwu").unlink()
        with pytest.raises(
            LuwuError, match=r"version-1\.luwu was removed while the store is open, .* restore a snapshot"
        ):
            for _ in range(2):
                worker.step()


def test_a_truncated_store(run: Path) -> None:
    chunks = run / "store/version-0.luwu"  # step 2's
    size = chunks.stat().st_size
    with chunks.open("r+b") as file:
        file.truncate(size - 4096)
    said = rf"version-0\.luwu is truncated at offset {size - 4096}: expected {size}"
    with pytest.raises(StoreCorruptError, match=said):
        train_on(run)


@pytest.mark.timeout(60)  # whoever reads a pipe waits for ever
def test_a_pipe_in_the_place_of_a_file_is_refused(run: Path) -> None:
    """Whoever opens, describes or verifies the store is told which file it is."""
    store = run / "store"
    files = sorted(path for path in store.rglob("*") if path.is_file() and path.name != "lock")
    assert len(files) == 5
    for path in files:
        kept = path.rename(run / "kept")
        os.mkfifo(path)
        for command in ("verify", "info"):
            told = CliRunner().invoke(app, ["store", command, str(store)])
            assert told.exit_code == 1
            assert f"{path}: expected" in told.output and "a pipe or a device; put the file back" in told.output
        with pytest.raises(StoreCorruptError, match="a pipe or a device; put the file back"):
            train_on(run)
        path.unlink()
        kept.rename(path)
    assert train_on(run).step == 3


@pytest.mark.parametrize("damage", ["page 0", "truncated", "missing"])
def test_damage_to_the_version_that_is_not_committed_is_said_and_mended(
    run: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    other = run / "store/version-1.luwu"  # step 1's
    if damage == "page 0":
        overwrite(other, 30, b"\xff")
    elif damage == "truncated":
        overwrite(other, 30, b"\xff")
        with other.open("r+b") as file:
            file.truncate(5000)
    else:
        other.unlink()
    verified = CliRunner().invoke(app, ["store", "verify", str(run / "store")])
    assert verified.exit_code == 1
    said = r"damaged: \S*version-1\.luwu (at offset 0|is truncated|is missing).*; luwu train, luwu server and"
    assert re.search(said, verified.output)
    assert "every checksum of a chunk is right" in verified.output
    with StoredValues([run / "store"]) as values:
        assert values.step == 2
    caplog.clear()
    assert train_on(run).step == 3
    assert re.search(r"version-1\.luwu .*; it is mended now", caplog.text)
    assert CliRunner().invoke(app, ["store", "verify", str(run / "store")]).exit_code == 0


def test_a_missing_committed_version_is_told_and_a_snapshot_goes_back_to_it(run: Path) -> None:
    store, runner = run / "store", CliRunner()
    assert runner.invoke(app, ["snapshot", "take", str(store)]).exit_code == 0
    assert train_on(run).step == 3
    (store / "version-1.luwu").unlink()
    verified = runner.invoke(app, ["store", "verify", str(store)])
    assert verified.exit_code == 1
    assert re.search(r"version-1\.luwu is missing; .*luwu snapshot restore", verified.output)
    assert runner.invoke(app, ["snapshot", "restore", str(store), "--step", "2"]).exit_code == 0
    assert runner.invoke(app, ["snapshot", "take", str(store)]).exit_code == 0  # opens it for writing
    assert runner.invoke(app, ["store", "verify", str(store)]).exit_code == 0
    assert train_on(run).step == 3


def test_a_newer_format_is_not_guessed_at(run: Path) -> None:
    overwrite(run / "store/version-0.luwu", 8, (7).to_bytes(4, "little"))
    with pytest.raises(StoreFormatError, match=r"version-0\.luwu at offset 0 has store format 7.*newer LuWu"):
        train_on(run)


def test_a_newer_manifest_is_not_guessed_at(run: Path) -> None:
    path = run / "store/manifest.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"format": 9}))
    with pytest.raises(StoreFormatError, match="manifest format 9"):
        train_on(run)
    path.write_text("{")
    with pytest.raises(StoreCorruptError, match=r"manifest\.json"):
        train_on(run)
    path.unlink()
    with pytest.raises(StoreCorruptError, match=r"manifest is missing.*nothing was changed"):
        train_on(run)
    path.write_text(json.dumps(document))
    assert train_on(run).step == 3


def test_a_damaged_copy_of_a_record_is_said_and_mended(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = run / "store"
    overwrite(store / "commit.luwu", COMMIT_SLOT_BYTES + 24, b"\xff")  # sequence 3, step 2
    said = r"commit\.luwu at offset 4096: a copy of a commit record is damaged"
    assert re.search(said, upkeep.info([store]).findings[0])
    assert CliRunner().invoke(app, ["store", "verify", str(store)]).exit_code == 1
    assert "\ndamaged " in CliRunner().invoke(app, ["store", "info", str(store)]).output
    assert train_on(run).step == 3  # goes on after step 2, which the other copy has
    assert re.search(said, caplog.text)
    assert upkeep.info([store]).findings == ()
    assert CliRunner().invoke(app, ["store", "verify", str(store)]).exit_code == 0


def test_a_damaged_record_goes_back_by_one_step_and_says_so(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    commits = run / "store/commit.luwu"
    for copy in (0, COMMIT_COPY_DISTANCE):
        overwrite(commits, copy + COMMIT_SLOT_BYTES + 24, b"\xff")
    found = verify([run / "store"])
    assert found.damaged == 0
    assert "stands at step 1" in found.findings[-1]
    with luwu.open(run, memory=MEMORY) as session:
        session.attach(small_manifest())
        assert session.step == 1
    assert "stands at step 1" in caplog.text
    for copy in (0, COMMIT_COPY_DISTANCE):
        for slot in (0, COMMIT_SLOT_BYTES):
            overwrite(commits, copy + slot + 24, b"\xff")
    with pytest.raises(StoreCorruptError, match=r"commit\.luwu at offset 0: none of the commit records"):
        train_on(run)


def test_who_reads_a_store_is_told_that_a_step_is_lost(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    for copy in (0, COMMIT_COPY_DISTANCE):
        overwrite(run / "store/commit.luwu", copy + COMMIT_SLOT_BYTES + 24, b"\xff")
    with StoredValues([run / "store"]) as values:
        assert values.step == 1
    assert "stands at step 1" in caplog.text


def test_a_missing_stripe(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    with luwu.open(tmp_path / "run", stores=folders, memory=MEMORY) as session:
        NumpyWorker(session, small_manifest()).step()
    with pytest.raises(StoreCorruptError, match="in the order"):
        train_on(
            tmp_path / "run", stores=folders[::-1] if (folders[1] / "manifest.json").exists() else _swapped(folders)
        )
    shutil.rmtree(folders[1])
    with pytest.raises(StoreCorruptError, match=r"b/version-0\.luwu is missing"):
        train_on(tmp_path / "run", stores=folders)


def _swapped(folders: list[Path]) -> list[Path]:
    """The folders in the wrong order, with the manifest where it is looked for."""
    for name in ("manifest.json", "commit.luwu"):
        shutil.copy(folders[0] / name, folders[1] / name)
    return folders[::-1]


@contextmanager
def opened(way: str, folder: Path) -> Iterator[Session]:
    """A session of the only worker, over shared memory or TCP; the store is `folder`/store."""
    if way == "local":
        with luwu.open(folder, memory=MEMORY) as session:
            yield session
        return
    with udp_tree(folder / "store", 1, transport="tcp") as url, remote(url, 1)(0) as session:
        yield session


@pytest.mark.parametrize("way", ["local", "tcp"])
def test_a_store_that_was_made_and_never_written_says_so(tmp_path: Path, way: str) -> None:
    with pytest.raises(StoreEmptyError, match=r"store has no values yet: expected first values before"):
        with opened(way, tmp_path) as session:
            assert session.attach(small_manifest())
            session.endpoint.wait(session.endpoint.pull(0))
    reader, _ = open_reader([tmp_path / "store"])
    with pytest.raises(StoreEmptyError, match="no values yet"):
        read_block(reader, 0)
    assert train_on(tmp_path).step == 1


def test_a_creation_that_was_cut_short_is_done_again(run: Path) -> None:
    fresh = run / "fresh"
    with luwu.open(fresh, memory=MEMORY) as session:
        assert session.attach(small_manifest())  # created, never initialised
    assert train_on(fresh).step == 1


def test_a_full_disk_is_told_before_the_run(small_disk: SmallDisk) -> None:
    with pytest.raises(StoreSpaceError, match=r"needs [\d.]+ [KMG]iB .* free some space") as caught:
        with luwu.open(small_disk.path, memory="1GiB") as session:
            session.attach(small_manifest(blocks=4, elements=2_000_000))
    assert "nothing was kept" in str(caught.value)
    assert not list((small_disk.path / "store").glob("*.luwu"))


def test_a_disk_that_fills_up_during_the_run_does_not_matter(small_disk: SmallDisk) -> None:
    """All space is reserved at creation: somebody else filling the disk stops nothing."""
    with luwu.open(small_disk.path, memory=MEMORY) as session:
        worker = NumpyWorker(session, small_manifest())
        worker.step()
        with (small_disk.path / "filler").open("wb") as filler, pytest.raises(OSError, match="No space left"):
            while True:
                filler.write(bytes(1 << 20))
        assert worker.step() and worker.step()
    with pytest.raises(LuwuError):  # a second store has no room
        train_on(small_disk.path / "another")
    assert train_on(small_disk.path).step == 4
