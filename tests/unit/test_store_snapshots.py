"""`luwu snapshot` and `session.snapshot()`: what a store was stays, can be read, and can be gone back to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import luwu
from luwu.cli.main import app
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.errors import ConfigError, ServerError, StoreCorruptError, StoreEmptyError, StoreFormatError, StoreLockedError
from luwu.store.folders import StoreIdentity, write_identity
from luwu.store.snapshots import remove, restore, snapshot_folders, snapshot_steps, snapshots, take
from luwu.store.upkeep import compact, info
from luwu.store.verifying import verify

WIDTH = 256
MEMORY = "64MiB"


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    layers[1].requires_grad_(False)
    return torch.nn.Sequential(*layers)


class Training:
    """Steps on batches that follow from the session's counts."""

    def __init__(self, session: luwu.session.session.Session) -> None:
        self.session = session
        self.model = luwu.parallelize(model(), session, blocks=[torch.nn.Linear])
        self._optimizer = luwu.AdamW(self.model, lr=1e-2)

    def steps(self, count: int) -> None:
        for _ in range(count):
            generator = torch.Generator().manual_seed(self.session.attempts)
            self.model(torch.randn(2, WIDTH, generator=generator)).square().sum().backward()
            self._optimizer.step()

    def values(self) -> list[torch.Tensor]:
        return list(luwu.full_state_dict(self.model).values())


def train(folder: Path, steps: int) -> list[torch.Tensor]:
    with luwu.open(folder, memory=MEMORY) as session:
        training = Training(session)
        training.steps(steps)
        return training.values()


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_snapshot_shares_its_bytes_until_the_store_changes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    train(tmp_path, 2)
    before = info([store]).folders[0].allocated_bytes
    assert take([store]) == 2
    room = info([store])
    assert room.snapshots == (2,)
    assert room.folders[0].allocated_bytes - before < 64 << 10  # a record and folders
    assert snapshots([store])[0].own_bytes < 64 << 10
    train(tmp_path, 3)
    version = (store / "version-0.luwu").stat().st_size
    assert version <= snapshots([store])[0].own_bytes < version + (64 << 10)  # and frozen values are still shared
    assert (store / "frozen.luwu").stat().st_nlink == 2
    remove([store], 2)
    assert snapshots([store]) == []
    assert info([store]).folders[0].allocated_bytes - before < 64 << 10


def test_training_from_what_was_restored_gives_the_same_bits(tmp_path: Path) -> None:
    store = tmp_path / "store"
    at_three = train(tmp_path, 3)
    take([store])
    at_five = train(tmp_path, 2)
    restore([store], 3)
    assert info([store]).step == info([store]).attempts == 3
    assert verify([store]).damaged == 0
    assert same(train(tmp_path, 0), at_three)
    assert same(train(tmp_path, 2), at_five)
    assert snapshot_steps([store]) == [3]
    assert verify(snapshot_folders([store], 3)).damaged == 0


def test_snapshots_while_the_store_is_open_take_what_was_committed(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    with luwu.open(tmp_path / "run", stores=folders, memory=MEMORY) as session:
        with pytest.raises(ServerError, match="attach first"):
            session.snapshot()
        training = Training(session)
        training.steps(1)
        assert session.snapshot() == 1
        at_one = training.values()
        training.steps(1)
        assert session.wait_durable() == 2
        assert take(folders) == 2  # as another process would, which sees what is on the disk
        at_two = training.values()
        training.steps(2)
        with pytest.raises(StoreLockedError):
            restore(folders, 1)
        remove(folders, 2)
        assert session.wait_durable() == 4
        assert take(folders) == 4
        training.steps(1)
        at_five = training.values()
    assert snapshot_steps(folders) == [1, 4]
    assert same(exported(folders, 1, tmp_path / "one"), at_one)
    assert not same(at_one, at_two)
    restore(folders, 1)
    with luwu.open(tmp_path / "run", stores=folders, memory=MEMORY) as session:
        training = Training(session)
        training.steps(4)
        assert same(training.values(), at_five)


def exported(folders: list[Path], step: int, target: Path) -> list[torch.Tensor]:
    named = [part for folder in folders for part in ("--store", str(folder))]
    done = CliRunner().invoke(app, ["export", str(target), *named, "--snapshot", str(step)])
    assert done.exit_code == 0, done.output
    found = load_file(target / "model.safetensors")
    return [found[name] for name in model().state_dict()]


def test_commands_take_show_restore_and_remove(tmp_path: Path) -> None:
    def command(*arguments: object, status: int = 0) -> str:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == status, done.output
        return done.output

    train(tmp_path, 2)
    assert "snapshot of step 2" in command("snapshot", "take", tmp_path)  # the run folder
    train(tmp_path, 1)
    command("snapshot", "take", tmp_path / "store")
    listed = json.loads(command("snapshot", "list", tmp_path, "--json"))
    assert [each["step"] for each in listed] == [2, 3]
    assert len(command("snapshot", "list", tmp_path).splitlines()) == 2
    assert "snapshots  step 2, step 3" in " ".join(command("store", "info", tmp_path).split()).replace(
        "snapshots step", "snapshots  step"
    )
    assert "2 committed" in command("store", "info", tmp_path, "--snapshot", 2)
    assert "step 2" in command("store", "verify", tmp_path, "--snapshot", 2)
    assert "stands at step 2" in command("snapshot", "restore", tmp_path, "--step", 2)
    assert info([tmp_path / "store"]).step == 2
    command("snapshot", "remove", tmp_path, "--step", 3)
    assert snapshot_steps([tmp_path / "store"]) == [2]
    for words in (("snapshot", "restore"), ("snapshot", "remove")):
        command(*words, tmp_path, "--step", 3, status=2)
    command("store", "verify", tmp_path, "--snapshot", 3, status=2)


def test_what_cannot_be_kept_or_restored_is_said(tmp_path: Path) -> None:
    for work in (take, snapshots):
        with pytest.raises(StoreFormatError, match="holds no store"):
            work([tmp_path])
    store = tmp_path / "run" / "store"
    with luwu.open(tmp_path / "run", memory=MEMORY) as session:
        session.attach(Manifest("float32", 2048, (block(),)))
        with pytest.raises(StoreEmptyError, match="no values yet"):
            session.snapshot()
    with pytest.raises(StoreEmptyError, match="no values yet"):
        take([store])
    with pytest.raises(ConfigError, match=r"expected a snapshot of step 7, found none"):
        restore([store], 7)
    assert snapshot_steps([store]) == []


def block(first: int = 0) -> BlockManifest:
    return BlockManifest("layer", True, (ParameterManifest("weight", (4096,), 0, 4096),), 4096 - first, first=first)


def test_a_damaged_snapshot_is_not_restored(tmp_path: Path) -> None:
    train(tmp_path, 2)
    store = [tmp_path / "store"]
    take(store)
    values = train(tmp_path, 2)
    damaged = snapshot_folders(store, 2)[0] / "version-0.luwu"
    with damaged.open("r+b") as file:
        file.seek(4096 + 100)
        file.write(b"\xff" * 64)
    with pytest.raises(StoreCorruptError, match=r"step 2 has 1 damaged chunk, and the store stays as it is"):
        restore(store, 2)
    assert info(store).step == 4
    assert same(train(tmp_path, 0), values)


def test_a_damaged_copy_of_a_snapshots_record_is_said_with_what_it_costs(tmp_path: Path) -> None:
    train(tmp_path, 2)
    assert take([tmp_path / "store"]) == 2
    path = tmp_path / "store" / "snapshots" / "2" / "snapshot.luwu"
    with path.open("r+b") as file:
        file.write(b"damaged")
    (finding,) = verify([path.parent]).findings
    assert finding.startswith(str(path)) and finding.endswith("the snapshot can be read and restored as it is")


def test_a_file_or_folder_with_a_number_for_a_name_is_no_snapshot(tmp_path: Path) -> None:
    train(tmp_path, 1)
    store = [tmp_path / "store"]
    inside = store[0] / "snapshots"
    (inside / "40").mkdir(parents=True)
    (inside / "5").write_text("mine")
    take(store)
    assert [each.step for each in snapshots(store)] == [1]
    for step in (5, 40):
        with pytest.raises(ConfigError, match=f"expected a snapshot of step {step}, found those of step 1"):
            restore(store, step)
    remove(store, 1)
    notes = inside / "1" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    with pytest.raises(ConfigError, match=r"or nothing in .*snapshots/1, found something else; move it"):
        take(store)
    assert sorted(path.name for path in inside.iterdir()) == ["1", "40", "5"]
    assert notes.read_text() == "mine"


def test_a_part_of_a_model_is_not_kept_alone_while_it_is_trained(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory=MEMORY) as session:
        session.attach(Manifest("float32", 2048, (block(),)))
        identity = StoreIdentity("0" * 32, 1, Manifest("float32", 2048, (block(first=2048),)))
        write_identity([tmp_path / "store"], identity)
        with pytest.raises(ConfigError, match=r"elements 2048 to 4096 of block layer.*--snapshot-every"):
            take([tmp_path / "store"])


def test_a_snapshot_is_no_store_to_train_on(tmp_path: Path) -> None:
    train(tmp_path, 1)
    take([tmp_path / "store"])
    inside = snapshot_folders([tmp_path / "store"], 1)
    with pytest.raises(ConfigError, match="is a snapshot, which is only read"):
        with luwu.open(tmp_path / "other", stores=inside, memory=MEMORY) as session:
            Training(session)
    with pytest.raises(ConfigError, match="is a snapshot, which is only read"):
        compact(inside)
    names = sorted(path.name for path in inside[0].iterdir())
    assert names == ["frozen.luwu", "manifest.json", "snapshot.luwu", "version-1.luwu"]
