"""A store knows its run: other runs are refused with a choice of remedies; copies, snapshots and restores keep it."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import luwu
import luwu.session.local
from luwu.errors import ConfigError, StoreCorruptError, StoreFormatError
from luwu.launch.checks import check_store
from luwu.launch.claiming import find_run_id, make_claim
from luwu.launch.folder import RunFolder
from luwu.launch.settings import Settings, build_settings, fixed_values
from luwu.server.server import LocalServer
from luwu.store.run_record import RUN_NAME, Claim, Counts, RunRecord, check_claim, claim_store, read_record
from luwu.store.sealed_json import CHECKSUM_NAME
from luwu.store.snapshots import restore, snapshot_folders, take

AT_12 = Counts(12, 13, 1)


def claim(run_id: str, *, layers: int = 2, checksum: int | None = 7, **words: bool) -> Claim:
    record = RunRecord(
        run_id, f"/runs/{run_id}", settings={"model.layers": layers, "run.stores": [run_id]},
        data={"name": run_id, "checksum": checksum},
    )  # fmt: skip
    return Claim(record, **words)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder of a store that the run `one` has."""
    claim_store(tmp_path, claim("one"), Counts(), imported=False)
    return tmp_path


def test_the_first_run_has_the_store_and_goes_on_in_it(store: Path) -> None:
    record = read_record(store)
    assert record is not None and (record.id, record.first) == ("one", Counts())
    assert claim_store(store, claim("one"), AT_12, imported=False) == (Counts(), "")


def test_a_run_whose_folder_has_moved_is_known_by_its_id(store: Path) -> None:
    wanted = claim("one")
    moved = replace(wanted, run=replace(wanted.run, folder="/elsewhere"))
    assert claim_store(store, moved, AT_12, imported=False) == (Counts(), "")
    record = read_record(store)
    assert record is not None and record.folder == "/elsewhere"


def test_another_run_is_refused_with_both_names_and_three_flags(store: Path) -> None:
    before = (store / RUN_NAME).read_bytes()
    for refuse in (
        lambda: check_claim(store, claim("two", layers=3)),
        lambda: claim_store(store, claim("two", layers=3), AT_12, imported=False),
    ):
        with pytest.raises(ConfigError) as refusal:
            refuse()
        text = str(refusal.value)
        assert "belongs to the run /runs/one (data one), and this is the run /runs/two" in text
        assert "differ in model.layers (2 there, 3 here)" in text and "run.stores" not in text
        assert [line.split()[0] for line in text.splitlines()[1:]] == ["--new-run", "--run", "--store"]
        assert "--run /runs/one " in text and "without --data, nor other settings that differ" in text
        assert "name another with --run if this run has begun" in text
    assert (store / RUN_NAME).read_bytes() == before


def test_a_new_run_goes_on_from_the_weights_and_counts_from_there(store: Path) -> None:
    first, word = claim_store(store, claim("two", takes_weights=True), AT_12, imported=False)
    assert first == AT_12 and "the run /runs/one (data one) trained to step 12" in word
    later = Counts(15, 16, 1)
    for wanted in (claim("two", takes_weights=True, begun=True), claim("two", begun=True)):  # the same command again
        assert claim_store(store, wanted, later, imported=False) == (AT_12, "")
    with pytest.raises(ConfigError, match="belongs to the run /runs/two"):
        check_claim(store, claim("one", begun=True))


def test_a_run_that_has_made_steps_takes_no_store_without_any(tmp_path: Path) -> None:
    wanted = replace(claim("one", begun=True), steps_made=40)
    with pytest.raises(ConfigError, match=r"the run /runs/one has made 40 steps, and its store is not in .*: mount"):
        claim_store(tmp_path, wanted, Counts(), imported=False)
    assert read_record(tmp_path) is None
    claim_store(tmp_path, wanted, AT_12, imported=False)  # of an earlier version, which wrote no record


def test_a_run_keeps_its_settings_though_its_folder_has_lost_them(store: Path) -> None:
    claim_store(store, claim("one", layers=3), Counts(), imported=False)  # nothing was trained with the first ones
    with pytest.raises(ConfigError, match=r"^model.layers: the run /runs/one .*\(3 there, 2 here\); give the first"):
        claim_store(store, claim("one", layers=2), AT_12, imported=False)
    assert claim_store(store, claim("one", layers=3), AT_12, imported=False) == (Counts(), "")


def test_a_missing_store_is_said_before_anything_is_made(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    check_store(build_settings({}), folder, takes_weights=False)
    folder.metrics_path.write_text('{"attempt": 0, "step": 1}\n{"attempt": 1, "step": 2}\n')
    with pytest.raises(ConfigError, match=r"run has made 2 steps, and its store is not in .*run/store: mount"):
        check_store(build_settings({}), folder, takes_weights=False)
    assert not (folder.path / "store").exists()


def test_a_run_that_has_begun_cannot_be_a_new_one(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"--new-run: expected a run folder that is new, found /runs/two"):
        check_claim(store, claim("two", takes_weights=True, begun=True))


@pytest.mark.parametrize(
    ("counts", "imported", "says"),
    [(Counts(), False, False), (AT_12, True, False), (AT_12, False, True)],
    ids=["fresh", "imported", "of an earlier version"],
)
def test_a_store_without_a_run_is_taken(tmp_path: Path, counts: Counts, imported: bool, says: bool) -> None:
    first, word = claim_store(tmp_path, claim("one"), counts, imported=imported)
    assert first == Counts()
    assert ("does not say which run has trained it" in word and "at step 12" in word) is says
    assert read_record(tmp_path) is not None


def test_an_imported_store_may_begin_a_new_schedule(tmp_path: Path) -> None:
    assert claim_store(tmp_path, claim("one", takes_weights=True), AT_12, imported=True) == (AT_12, "")


def test_a_run_whose_data_has_changed_is_refused(store: Path) -> None:
    with pytest.raises(ConfigError, match="data: expected the text that the run /runs/one"):
        claim_store(store, claim("one", checksum=8), AT_12, imported=False)
    assert claim_store(store, claim("one", checksum=None), AT_12, imported=False) == (Counts(), "")  # not known


def test_a_store_that_stands_before_its_run_began_is_refused(store: Path) -> None:
    claim_store(store, claim("two", takes_weights=True), AT_12, imported=False)
    with pytest.raises(ConfigError, match="stands at step 3, before this run began in it at step 12"):
        claim_store(store, claim("two"), Counts(3, 3, 0), imported=False)


def test_a_damaged_or_newer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / RUN_NAME).write_text("{")
    with pytest.raises(StoreCorruptError, match=r"run\.json: expected JSON that names the store's run"):
        read_record(tmp_path)
    (tmp_path / RUN_NAME).write_text('{"format": 2}')
    with pytest.raises(StoreFormatError, match="format 2; this LuWu reads up to 1"):
        read_record(tmp_path)


def test_a_flipped_bit_is_not_taken_for_another_run(store: Path) -> None:
    content = (store / RUN_NAME).read_bytes()
    for bit in range(0, len(content) * 8, 5):  # of each byte one or two
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (store / RUN_NAME).write_bytes(damaged)
        with pytest.raises((StoreCorruptError, StoreFormatError), match=r"run\.json: "):
            read_record(store)


def test_a_file_from_before_there_were_checksums_is_read(store: Path) -> None:
    document = json.loads((store / RUN_NAME).read_text())
    del document[CHECKSUM_NAME]
    (store / RUN_NAME).write_text(json.dumps(document))
    record = read_record(store)
    assert record is not None and record.id == "one"


def test_a_claim_travels_as_text() -> None:
    wanted = claim("one", takes_weights=True)
    assert Claim.from_json(wanted.to_json()) == wanted
    with pytest.raises(ConfigError, match="expected a run's claim"):
        Claim.from_json("[]")


def settings_of(folder: Path, **model: int) -> Settings:
    return build_settings({"model": model, "run": {"stores": [folder / "store"]}})


def begin(settings: Settings, folder: RunFolder, store: Path) -> str:
    """Begin a run as the launcher does, and return its id."""
    folder.path.mkdir()
    run_id = find_run_id(settings, folder, store)
    folder.save_id(run_id)
    claim_store(store, make_claim(settings, folder, run_id), Counts(), imported=False)
    return run_id


def test_a_run_whose_folder_is_gone_is_known_by_its_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    settings, folder = settings_of(tmp_path), RunFolder(tmp_path / "run")
    run_id = begin(settings, folder, tmp_path / "store")
    other = RunFolder(tmp_path / "other")
    assert find_run_id(settings, other, tmp_path / "store") != run_id  # the store's run exists, so this is another one
    shutil.rmtree(folder.path)
    assert find_run_id(settings, other, tmp_path / "store") == run_id
    assert find_run_id(settings_of(tmp_path, layers=3), other, tmp_path / "store") != run_id
    assert find_run_id(settings, other, None) != run_id


def test_settings_that_a_run_keeps_are_comparable() -> None:
    values = fixed_values(build_settings({"run": {"block_dtypes": {"norm": "float16"}}}))
    assert values["run.block_dtypes"] == {"norm": "float16"} and values["model.layers"] == 4
    assert json.loads(json.dumps(values)) == values


def train(folder: Path, steps: int, wanted: Claim | None = None) -> None:
    """Train a tiny model for some steps, for a run or for a program that names none."""

    def on_open(counts: Counts) -> Counts:
        return counts if wanted is None else claim_store(folder / "store", wanted, counts, imported=False)[0]

    with LocalServer(folder, None, 1 << 26, 1, on_open=on_open) as server:
        with luwu.session.local.join(server.socket_path, 0, 1) as session:
            model = luwu.parallelize(torch.nn.Sequential(torch.nn.Linear(4, 4)), session, blocks=[torch.nn.Linear])
            optimizer = luwu.AdamW(model, lr=1e-2)
            for _ in range(steps):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()


def test_snapshots_copies_and_programs_keep_the_run(tmp_path: Path) -> None:
    store = tmp_path / "run" / "store"
    train(tmp_path / "run", 2, claim("one"))
    take([store])
    subprocess.run(["cp", "-al", tmp_path / "run", tmp_path / "linked"], check=True)
    train(tmp_path / "run", 1, claim("two", takes_weights=True))
    train(tmp_path / "run", 1)  # a program, which claims nothing
    for folder, expected in (
        (store, "two"),
        (tmp_path / "linked" / "store", "one"),
        (snapshot_folders([store], 2)[0], "one"),
    ):
        record = read_record(folder)
        assert record is not None and record.id == expected, folder
    restore([store], 2)
    record = read_record(store)
    assert record is not None and record.id == "one"
    train(tmp_path / "run", 1, claim("one"))


def test_a_refused_run_leaves_the_store_as_it_is(tmp_path: Path) -> None:
    train(tmp_path / "run", 2, claim("one"))
    with pytest.raises(ConfigError, match="belongs to the run /runs/one"):
        train(tmp_path / "run", 1, claim("two"))
    train(tmp_path / "run", 1, claim("one"))  # and free for others


def test_what_a_store_lacks_is_said_before_anything_starts(tmp_path: Path) -> None:
    train(tmp_path / "run", 3, claim("one"))
    folder = RunFolder(tmp_path / "run")
    folder.save_id("one")
    check_store(build_settings({"run": {"steps": 3}}), folder, takes_weights=False)
    with pytest.raises(
        ConfigError, match=r"run\.steps: expected at least 3, the steps that this run has made, found 2"
    ):
        check_store(build_settings({"run": {"steps": 2}}), folder, takes_weights=False)
    with pytest.raises(luwu.errors.ManifestMismatchError, match=r"optimizer\.name: .* made for adamw, found lion"):
        check_store(build_settings({"optimizer": {"name": "lion"}}), folder, takes_weights=False)
    two = [tmp_path / "run" / "store", tmp_path / "another"]
    with pytest.raises(StoreCorruptError, match="striped over 1 folder, found 2 named"):
        check_store(build_settings({"run": {"stores": two}}), folder, takes_weights=False)
    with pytest.raises(ConfigError, match=r"--new-run: expected a store with weights in .*nothing.*, found none"):
        check_store(build_settings({}), RunFolder(tmp_path / "nothing"), takes_weights=True)
