"""`luwu store` says what there is, finds what is damaged, and gives back only what nobody needs."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from tests.unit.pretrained import save
from typer.testing import CliRunner

import luwu
from luwu.cli.main import app
from luwu.core.manifest import BlockManifest, Manifest, ParameterManifest
from luwu.errors import (
    CheckpointError,
    ConfigError,
    StoreCorruptError,
    StoreEmptyError,
    StoreFormatError,
    StoreLockedError,
)
from luwu.launch.folder import RunFolder
from luwu.launch.settings import build_settings
from luwu.store.folders import StoreIdentity, write_identity
from luwu.store.importing import import_values
from luwu.store.sources import CheckpointSource
from luwu.store.upkeep import compact, info
from luwu.store.verifying import verify
from luwu.worker.layout import describe

WIDTH = 1024
"""Two chunks to a layer, so that holes in the store are larger than what a file system keeps track of."""


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    half = WIDTH // 2
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, half), torch.nn.Linear(half, WIDTH), torch.nn.Linear(WIDTH, 1))


def train(folder: Path, steps: int) -> list[torch.Tensor]:
    with luwu.open(folder, memory="64MiB") as session:
        parts = luwu.parallelize(model(), session, blocks=[torch.nn.Linear])
        optimizer = luwu.AdamW(parts, lr=1e-2)
        for step in range(session.step, session.step + steps):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(2, WIDTH, generator=generator)
            parts(x).square().sum().backward()
            optimizer.step()
        return list(luwu.full_state_dict(parts).values())


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def test_info_says_what_a_trained_store_holds(tmp_path: Path) -> None:
    train(tmp_path, 2)
    found = info([tmp_path / "store"])
    assert (found.step, found.attempts, found.rolled_back) == (2, 2, 0)
    assert found.trainable == sum(parameter.numel() for parameter in model().parameters())
    assert (found.frozen, found.blocks, found.dtype, found.model) == (0, 3, "float32", ())
    assert found.optimizer_states == ("exp_avg", "exp_avg_sq")
    assert found.folders[0].allocated_bytes >= 6 * 4 * found.trainable
    assert (found.in_use, found.unfinished_import) == (False, False)
    printed = CliRunner().invoke(app, ["store", "info", str(tmp_path)]).output  # the run folder
    assert "2 committed; 2 tried, 0 rolled back" in printed
    as_json = json.loads(CliRunner().invoke(app, ["store", "info", str(tmp_path / "store"), "--json"]).output)
    assert as_json["uuid"] == found.uuid


def test_a_run_folder_names_its_store_wherever_that_is(tmp_path: Path) -> None:
    train(tmp_path / "elsewhere", 1)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.save_settings(build_settings({"run": {"stores": (str(tmp_path / "elsewhere" / "store"),)}}))
    none = CliRunner().invoke(app, ["snapshot", "list", str(run.path)])
    assert none.stdout == "no snapshots; luwu snapshot take makes one\n"
    assert CliRunner().invoke(app, ["snapshot", "list", str(run.path), "--json"]).stdout == "[]\n"
    for command in ("store info", "store verify", "store compact", "snapshot take", "snapshot list"):
        done = CliRunner().invoke(app, [*command.split(), str(run.path)])
        assert done.exit_code == 0, (command, done.output)
    done = CliRunner().invoke(app, ["export", str(tmp_path / "out"), "--store", str(run.path)])
    assert done.exit_code == 0 and (tmp_path / "out" / "model.safetensors").exists(), done.output
    assert "no config.json: " in done.stdout and "safetensors.torch.load_file loads its files" in done.stdout
    done = CliRunner().invoke(app, ["export", str(tmp_path / "out"), "--store", str(run.path)])
    assert " in 1 file; 1 of them already there" in done.stdout
    shutil.rmtree(tmp_path / "elsewhere")
    done = CliRunner().invoke(app, ["store", "info", str(run.path)])
    assert done.exit_code == 2 and "expected the run's store in" in done.output and "found none" in done.output


def test_info_of_a_store_in_use(tmp_path: Path) -> None:
    with luwu.open(tmp_path, memory="64MiB") as session:
        luwu.parallelize(model(), session)
        assert info([tmp_path / "store"]).in_use
        for work in (verify, compact):
            with pytest.raises(StoreLockedError, match="open in process"):
                work([tmp_path / "store"])


def test_info_knows_where_an_import_came_from(tmp_path: Path) -> None:
    save("llama", tmp_path / "in")
    result = CliRunner().invoke(app, ["import", str(tmp_path / "in"), "--store", str(tmp_path / "store")])
    assert result.exit_code == 0, result.output
    found = info([tmp_path / "store"])
    assert found.model == ("LlamaForCausalLM",)
    assert found.origin == (str((tmp_path / "in" / "model.safetensors").resolve()),)
    assert found.step == 0


def test_commands_bring_a_model_in_and_out(tmp_path: Path) -> None:
    save("llama", tmp_path / "in")

    def luwu_command(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.output

    luwu_command("import", tmp_path / "in", "--store", tmp_path / "store", "--optimizer", "adam", "--dtype", "bfloat16")
    assert info([tmp_path / "store"]).optimizer_states == ("master", "exp_avg", "exp_avg_sq")
    assert "nothing to do" in luwu_command(
        "import", tmp_path / "in", "--store", tmp_path / "store", "--optimizer", "adam", "--dtype", "bfloat16"
    )
    said = luwu_command("export", tmp_path / "out", "--store", tmp_path / "store", "--shard-size", "20kB")
    assert "step 0" in said and "no config.json" not in said
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    luwu_command("export", tmp_path / "dcp", "--store", tmp_path / "store", "--dcp", "--lr", 0.25, "--betas", 0.5, 0.75)
    luwu_command("import", tmp_path / "dcp", "--model", tmp_path / "in", "--store", tmp_path / "back")
    assert info([tmp_path / "back"]).model == ("LlamaForCausalLM",)
    settings = json.loads((tmp_path / "dcp" / "luwu-export.json").read_text())["origin"]["settings"]
    assert (settings["lr"], settings["betas"]) == (0.25, [0.5, 0.75])
    refused = CliRunner().invoke(app, ["export", str(tmp_path / "x"), "--store", str(tmp_path / "store"), "--lr", "1"])
    assert refused.exit_code == 2


def test_verify_reads_all_and_finds_a_flipped_byte(tmp_path: Path) -> None:
    train(tmp_path, 3)
    store = tmp_path / "store"
    whole = verify([store])
    parameters = info([store]).trainable
    assert whole.damaged == 0
    assert parameters * 12 <= whole.nbytes < parameters * 12.1  # each with two states; the rest is padding
    assert whole.chunks == info([store]).chunks
    seen: list[tuple[int, int]] = []
    verify([store], lambda done, total: seen.append((done, total)))
    assert seen[-1] == (whole.nbytes, whole.nbytes)

    size = (store / "version-0.luwu").stat().st_size
    for version, expected in ((0, range(1)), (1, range(8, 11))):  # version 1 is committed, and nobody reads the other
        found = 0
        for part in range(1, 11):
            flip(store / f"version-{version}.luwu", size * part // 11)
            report = verify([store])
            assert report.damaged <= 1
            found += report.damaged
            flip(store / f"version-{version}.luwu", size * part // 11)
        assert found in expected

    flip(store / "version-1.luwu", 0)
    with pytest.raises(StoreCorruptError, match=r"version-1.luwu at offset 0: the file header's checksum is wrong"):
        verify([store])


def test_verify_command_names_the_first_damage_and_counts_all(tmp_path: Path) -> None:
    train(tmp_path, 2)  # version 0 is the committed one
    right = CliRunner().invoke(app, ["store", "verify", str(tmp_path / "store")])
    assert right.exit_code == 0
    assert "every checksum is right" in right.output
    size = (tmp_path / "store" / "version-0.luwu").stat().st_size
    for offset in (5000, 4096 + size // 2):
        flip(tmp_path / "store" / "version-0.luwu", offset)
    wrong = CliRunner().invoke(app, ["store", "verify", str(tmp_path / "store")])
    assert wrong.exit_code == 1
    assert "2 damaged chunks; the first:" in wrong.output
    assert "version-0.luwu at offset 4096 (block" in wrong.output


def test_compact_keeps_every_bit_and_training_goes_on(tmp_path: Path) -> None:
    train(tmp_path / "plain", 3)
    expected = train(tmp_path / "plain", 2)
    before = train(tmp_path / "run", 3)
    store = tmp_path / "run" / "store"
    allocated = info([store]).folders[0].allocated_bytes
    length = (store / "version-0.luwu").stat().st_size
    given = compact([store])
    use = info([store]).folders[0]
    assert given > 0.45 * allocated
    assert use.allocated_bytes == allocated - given
    assert (store / "version-0.luwu").stat().st_size == length
    assert verify([store]).damaged == 0
    assert compact([store]) == 0
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert all(torch.equal(a, b) for a, b in zip(train(tmp_path / "copy", 0), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(train(tmp_path / "run", 2), expected, strict=True))
    assert info([store]).folders[0].allocated_bytes >= allocated  # reserved again


def test_what_is_no_store_is_said(tmp_path: Path) -> None:
    for work in (info, verify, compact):
        with pytest.raises(StoreFormatError, match=r"holds no store: manifest\.json is missing there"):
            work([tmp_path])
    train(tmp_path, 1)
    for work in (info, verify, compact):
        with pytest.raises(ConfigError, match="striped over 1 folder, found 2 named"):
            work([tmp_path / "store", tmp_path])
        with pytest.raises(StoreFormatError, match=r"holds no manifest\.json, and .*store does, .*/store first"):
            work([tmp_path, tmp_path / "store"])
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "commit.luwu").touch()
    with pytest.raises(StoreFormatError, match=r"later holds .* it is folder 2 or a later one of a striped store"):
        info([tmp_path / "later"])


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_store_without_its_manifest_is_told_which_file_is_missing(tmp_path: Path, snapshot: bool) -> None:
    train(tmp_path, 2)
    store = tmp_path / "store"
    if snapshot:
        assert CliRunner().invoke(app, ["snapshot", "take", str(store)]).exit_code == 0
    (store / "manifest.json").unlink()
    where = re.escape(str(store / "snapshots" / "2" / "manifest.json")) if snapshot else "a copy of the store"
    for named in (store, tmp_path):
        for command in ("store verify", "store info", "snapshot list"):
            done = CliRunner().invoke(app, [*command.split(), str(named)])
            assert done.exit_code == 1
            assert re.search(rf"store/manifest\.json is missing, and .*; put the file back from {where}", done.output)
    if snapshot:
        shutil.copy(store / "snapshots" / "2" / "manifest.json", store)
        assert CliRunner().invoke(app, ["store", "verify", str(store)]).exit_code == 0


def test_a_store_without_values_has_nothing_to_verify(tmp_path: Path) -> None:
    manifest = describe(model())

    class Unreadable:
        path, files = tmp_path, ()

        def names(self) -> tuple[str, ...]:
            return tuple(parameter.name for block in manifest.blocks for parameter in block.parameters)

        def shape(self, name: str) -> tuple[int, ...]:
            return next(each.shape for block in manifest.blocks for each in block.parameters if each.name == name)

        def dtype(self, name: str) -> torch.dtype:
            return torch.float32

        def read_range(self, name: str, first: int, count: int) -> torch.Tensor:
            raise CheckpointError("the disk is gone")

    with pytest.raises(CheckpointError):
        import_values(CheckpointSource(Unreadable(), manifest), manifest, [tmp_path / "store"])
    assert info([tmp_path / "store"]).step is None
    assert info([tmp_path / "store"]).unfinished_import
    for work in (verify, compact):
        with pytest.raises(StoreEmptyError, match="has no values yet; train or import into it first"):
            work([tmp_path / "store"])


def test_one_of_several_servers_keeps_the_step_before(tmp_path: Path) -> None:
    parameter = ParameterManifest("weight", (4096,), 0, 4096)
    manifest = Manifest("float32", 2048, (BlockManifest("layer", True, (parameter,), 2048, first=2048),))
    write_identity([tmp_path], StoreIdentity("0" * 32, 1, manifest))
    with pytest.raises(ConfigError, match=r"elements 2048 to 4096 of block layer.*go back to the step before"):
        compact([tmp_path])
