"""Training on a run or on its copy with hard links (`cp -al`) leaves the other one as it is."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from tests.integration.fabric_worker import NumpyWorker, small_manifest

import luwu
from harness.disk import operations
from harness.training import finish, prepare_small_run, start_small_run, steps_of
from luwu.errors import StoreCorruptError, StoreLockedError
from luwu.store.importing import import_values
from luwu.store.upkeep import info
from luwu.store.verifying import verify

MEMORY = 64 << 20


def contents(folder: Path) -> dict[str, str]:
    """A digest of every file in a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def copy_with_links(run: Path, copy: Path) -> None:
    subprocess.run(["cp", "-al", str(run), str(copy)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(900)  # it starts a run three times
def test_every_file_of_a_run_that_goes_on_stays_as_it_is_in_the_copy(tmp_path: Path) -> None:
    folder = prepare_small_run(tmp_path, workers=1)

    def train(run: str, steps: int) -> None:
        code, _, error = finish(start_small_run(folder, run, "--steps", str(steps)), 300)
        assert code == 0, error

    train("run", 4)
    copy_with_links(folder / "run", folder / "copy")
    before = contents(folder / "copy")
    assert {"metrics.jsonl", "worker-0.log", "job.json", "loss.png", "config.toml"} <= set(before)
    train("run", 7)
    assert contents(folder / "copy") == before
    assert len(steps_of(folder, "copy")) == 4
    before = contents(folder / "run")
    train("copy", 7)
    assert contents(folder / "run") == before
    assert steps_of(folder, "copy") == steps_of(folder, "run")


def test_a_run_and_its_copy_are_trained_at_the_same_time(tmp_path: Path) -> None:
    def step_on(folder: Path) -> int:
        with luwu.open(folder, memory=MEMORY) as session:
            NumpyWorker(session, small_manifest()).step()
            return session.step

    assert step_on(tmp_path / "run") == 1
    copy_with_links(tmp_path / "run", tmp_path / "copy")
    with luwu.open(tmp_path / "run", memory=MEMORY) as session:
        worker = NumpyWorker(session, small_manifest())
        worker.step()
        assert step_on(tmp_path / "copy") == 2
        copy_with_links(tmp_path / "run", tmp_path / "second")  # while the run is open, between two steps
        with pytest.raises(StoreLockedError):
            step_on(tmp_path / "run")
        worker.step()
        assert step_on(tmp_path / "second") == 3
        assert session.step == 3
    assert verify([tmp_path / "copy/store"]).damaged == 0
    assert step_on(tmp_path / "copy") == 3


def test_an_import_of_which_half_was_copied_begins_again(tmp_path: Path) -> None:
    operations.with_a_copy_of_half_an_import(tmp_path)
    copies, manifest = operations.copies_of(tmp_path), operations.model_manifest()
    before = [contents(copy) for copy in copies]
    operations.import_numbers(tmp_path, manifest)
    assert [contents(copy) for copy in copies] == before
    assert verify(operations.stores_of(tmp_path)).damaged == 0
    import_values(operations.NUMBERS, manifest, copies)
    assert verify(copies).damaged == 0


def test_a_folder_of_a_copy_beside_the_stores_own_is_refused_and_the_copy_stays_whole(tmp_path: Path) -> None:
    def step_on(*folders: str) -> int:
        with luwu.open(tmp_path / "run", stores=[tmp_path / each for each in folders], memory=MEMORY) as session:
            NumpyWorker(session, small_manifest()).step()
            return session.step

    step_on("0", "1")
    for number in ("0", "1"):
        copy_with_links(tmp_path / number, tmp_path / f"copy-{number}")
    assert step_on("0", "1") == 2
    with pytest.raises(StoreCorruptError, match=r"copy-1/commit\.luwu: its records end at step 1, .* another time"):
        step_on("0", "copy-1")
    (finding,) = info([tmp_path / "0", tmp_path / "copy-1"]).findings
    assert finding.endswith("remove it")
    report = verify([tmp_path / "copy-0", tmp_path / "copy-1"])
    assert (report.step, report.damaged, report.findings) == (1, 0, ())
    assert step_on("0", "1") == 3
