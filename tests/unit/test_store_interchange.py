"""A pretrained model goes into a store and out again with the same bits, after a kill too; it trains in between."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.pretrained import auto_class, build, same_bits, save
from torch import Tensor

import luwu
import luwu.store.importing as importing
import luwu.store.outputs as outputs
from luwu.errors import (
    ConfigError,
    ManifestMismatchError,
    StoreError,
    StoreLockedError,
    StoreSpaceError,
)
from luwu.models.importing import import_pretrained
from luwu.store.exporting import export_safetensors
from luwu.store.folders import ORIGIN_NAME, UNFINISHED_IMPORT_NAME
from luwu.store.opening import open_reader
from luwu.store.origin import read_origin, write_journal
from luwu.store.outputs import JOURNAL_NAME
from luwu.store.values import StoredValues
from luwu.store.verifying import verify
from luwu.worker import layout
from luwu.worker.layout import lay_out as layout_of

INDEX = "model.safetensors.index.json"


class KilledError(Exception):
    """Stands for SIGKILL: nothing catches it."""


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral", "resnet"])
def test_in_and_out_keeps_every_bit(family: str, tmp_path: Path) -> None:
    model = save(family, tmp_path / "in", shard_size="20KB")
    stores = [tmp_path / "store", tmp_path / "stripe"]
    report = import_pretrained(tmp_path / "in", stores)
    assert (report.step, report.finished_before) == (0, False)
    assert report.parameters == sum(parameter.numel() for parameter in model.parameters())
    done = export_safetensors(stores, tmp_path / "out", shard_bytes=20_000)
    assert done.shards == len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert all(path.stat().st_size < 40_000 for path in (tmp_path / "out").glob("*.safetensors"))
    same_bits(auto_class(family).from_pretrained(tmp_path / "out"), model)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"version": "1.0"}'


def test_a_bfloat16_store_keeps_float32_masters(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"], dtype="bfloat16")
    export_safetensors([tmp_path / "store"], tmp_path / "exact", dtype="float32")
    export_safetensors([tmp_path / "store"], tmp_path / "stored")
    same_bits(auto_class("llama").from_pretrained(tmp_path / "exact"), model)
    stored = auto_class("llama").from_pretrained(tmp_path / "stored")
    assert stored.dtype == torch.bfloat16  # without being asked for: the configuration says so
    for name, value in model.state_dict().items():
        nearest = ((value.view(torch.int32) + 0x8000) >> 16).to(torch.int16)  # ties go away from zero
        assert torch.equal(stored.state_dict()[name].view(torch.int16), nearest), name
    assert {path.name for path in (tmp_path / "stored").glob("model*")} == {"model.safetensors"}


def test_float16_that_does_not_hold_a_value_is_refused(tmp_path: Path) -> None:
    model = save("llama", tmp_path / "in")
    with torch.no_grad():
        model.model.norm.weight[3] = 1e6
    model.save_pretrained(tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    with pytest.raises(ConfigError, match=r"float16 ends at 65504, found 1e\+06 in parameter model.norm.weight"):
        export_safetensors([tmp_path / "store"], tmp_path / "out", dtype="float16")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [JOURNAL_NAME]


def train(store: Path, run: Path, steps: int) -> dict[str, Tensor]:
    """Train GPT-2 on the store, and return its values."""
    with luwu.open(run, stores=[store], memory="64MiB") as session:
        model = luwu.parallelize(build("gpt2"), session)
        optimizer = luwu.AdamW(model, lr=1e-2)
        for step in range(session.step, session.step + steps):
            generator = torch.Generator().manual_seed(step)
            tokens = torch.randint(0, 65, (2, 12), generator=generator)
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
        return luwu.full_state_dict(model)


def test_an_imported_store_trains_on_and_comes_out_as_trained(tmp_path: Path) -> None:
    model = save("gpt2", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    trained = train(tmp_path / "store", tmp_path / "run", 2)
    export_safetensors([tmp_path / "store"], tmp_path / "out")
    loaded = auto_class("gpt2").from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in trained.items())
    assert not torch.equal(loaded["transformer.wte.weight"], model.state_dict()["transformer.wte.weight"])
    with pytest.raises(ConfigError, match="holds another export"):
        train(tmp_path / "store", tmp_path / "run", 1)
        export_safetensors([tmp_path / "store"], tmp_path / "out")


def test_a_store_in_use_is_not_exported(tmp_path: Path) -> None:
    save("gpt2", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    with luwu.open(tmp_path / "run", stores=[tmp_path / "store"], memory="64MiB") as session:
        luwu.parallelize(build("gpt2"), session)
        with pytest.raises(StoreLockedError, match="is open in process"):
            export_safetensors([tmp_path / "store"], tmp_path / "out")
    with (
        StoredValues([tmp_path / "store"]),
        luwu.open(tmp_path / "run", stores=[tmp_path / "store"]) as session,
        pytest.raises(StoreLockedError),
    ):
        luwu.parallelize(build("gpt2"), session)


def killed_after(chunks: int, monkeypatch: pytest.MonkeyPatch, whole: Callable[[], object]) -> int:
    """Import until a number of chunks was asked for; return the number that the whole import asks for."""
    asked = 0
    gather = importing._gather

    def counted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if chunks and asked > chunks:
            raise KilledError
        return gather(*arguments)

    monkeypatch.setattr(importing, "_gather", counted)
    with suppress(KilledError):
        whole()
    monkeypatch.setattr(importing, "_gather", gather)
    return asked


def test_a_killed_import_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save("gpt2", tmp_path / "in")
    monkeypatch.setattr(importing, "SYNC_BYTES", 1)
    store = tmp_path / "store"

    def whole() -> object:
        return import_pretrained(tmp_path / "in", [store])

    assert killed_after(2, monkeypatch, whole) == 3
    assert json.loads((store / UNFINISHED_IMPORT_NAME).read_text())["chunks"] == 1
    with (
        pytest.raises(StoreError, match="import that was not finished"),
        luwu.open(tmp_path / "run", stores=[store]) as session,
    ):
        luwu.parallelize(build("gpt2"), session)
    uuid = json.loads((store / "manifest.json").read_text())["uuid"]
    assert killed_after(0, monkeypatch, whole) == 3 - 1  # of three chunks one was durable
    assert json.loads((store / "manifest.json").read_text())["uuid"] == uuid
    assert not (store / UNFINISHED_IMPORT_NAME).exists()
    export_safetensors([store], tmp_path / "out")
    same_bits(auto_class("gpt2").from_pretrained(tmp_path / "out"), model)
    assert killed_after(0, monkeypatch, whole) == 0


@pytest.mark.parametrize("killed", [False, True])
def test_a_checkpoint_is_known_by_its_values_when_its_time_of_change_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    save("gpt2", tmp_path / "in")
    weights, store = tmp_path / "in" / "model.safetensors", tmp_path / "store"
    monkeypatch.setattr(importing, "SYNC_BYTES", 1)

    def whole() -> Any:
        return import_pretrained(tmp_path / "in", [store])

    if killed:
        killed_after(2, monkeypatch, whole)
    whole()
    os.utime(weights, ns=(1, 1))
    assert whole().finished_before
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match="it came from other contents of these files, which have changed since"):
        whole()
    origin = json.loads((store / ORIGIN_NAME).read_text())
    (store / ORIGIN_NAME).write_text(json.dumps({"origin": origin["origin"]}))  # as of an earlier version
    with pytest.raises(ConfigError, match=r"the time of change of its files is another .* no checksum"):
        whole()


@pytest.mark.parametrize("journal", ["of all chunks", "of an earlier version"])
def test_an_import_that_is_killed_after_its_commit_has_the_checksum_of_all_values_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: str
) -> None:
    save("gpt2", tmp_path / "in")
    store = tmp_path / "store"
    import_pretrained(tmp_path / "in", [tmp_path / "whole"])

    def killed(*arguments: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(importing, "_finish", killed)
        import_pretrained(tmp_path / "in", [store])
    if journal == "of an earlier version":  # which noted the chunks before the last ones alone
        unfinished = read_origin(store / UNFINISHED_IMPORT_NAME)
        assert unfinished is not None
        write_journal(store, replace(unfinished, chunks=1, values="00c0ffee"))
    assert import_pretrained(tmp_path / "in", [store]).finished_before
    found, whole = read_origin(store / ORIGIN_NAME), read_origin(tmp_path / "whole" / ORIGIN_NAME)
    assert found is not None and whole is not None and whole.values
    assert found.values == (whole.values if journal == "of all chunks" else "")


def test_the_same_checkpoint_with_other_flags_is_refused_as_that(tmp_path: Path) -> None:
    save("gpt2", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"], dtype="bfloat16")
    with pytest.raises(ConfigError, match="it came from there with another dtype, other blocks or another optimizer"):
        import_pretrained(tmp_path / "in", [tmp_path / "store"])


def test_a_killed_import_of_something_else_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("gpt2", tmp_path / "before")
    model = save("gpt2", tmp_path / "in", seed=7)
    monkeypatch.setattr(importing, "SYNC_BYTES", 1)
    killed_after(2, monkeypatch, lambda: import_pretrained(tmp_path / "before", [tmp_path / "store"]))
    report = import_pretrained(tmp_path / "in", [tmp_path / "store"])
    assert report.resumed_at_chunk == 0
    export_safetensors([tmp_path / "store"], tmp_path / "out")
    same_bits(auto_class("gpt2").from_pretrained(tmp_path / "out"), model)
    with pytest.raises(ConfigError, match="holds a model already, and it did not come from there"):
        import_pretrained(tmp_path / "before", [tmp_path / "store"])
    with pytest.raises(ConfigError, match="striped over 1 folder, found 2 named"):
        import_pretrained(tmp_path / "in", [tmp_path / "store", tmp_path / "stripe"])


def test_a_half_import_that_a_linked_copy_shares_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save("gpt2", tmp_path / "in")
    store, copy = tmp_path / "store", tmp_path / "copy"
    with monkeypatch.context() as patched:
        patched.setattr(importing, "SYNC_BYTES", 1)
        killed_after(2, patched, lambda: import_pretrained(tmp_path / "in", [store]))
    shutil.copytree(store, copy, copy_function=os.link)
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    assert import_pretrained(tmp_path / "in", [store]).resumed_at_chunk == 0
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert import_pretrained(tmp_path / "in", [copy]).resumed_at_chunk == 1
    for folder in (store, copy):
        assert verify([folder]).damaged == 0
        export_safetensors([folder], tmp_path / f"out-{folder.name}")
        same_bits(auto_class("gpt2").from_pretrained(tmp_path / f"out-{folder.name}"), model)


def test_an_import_that_was_killed_as_it_started_over_starts_over_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("gpt2", tmp_path / "before")
    save("gpt2", tmp_path / "in", seed=7)
    monkeypatch.setattr(importing, "SYNC_BYTES", 1)
    killed_after(2, monkeypatch, lambda: import_pretrained(tmp_path / "before", [tmp_path / "store"]))

    def killed(*arguments: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(importing, "write_identity", killed)
        import_pretrained(tmp_path / "in", [tmp_path / "store"])
    assert import_pretrained(tmp_path / "in", [tmp_path / "store"]).resumed_at_chunk == 0
    assert verify([tmp_path / "store"]).damaged == 0


def test_a_killed_export_keeps_finished_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save("llama", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    seen = 0

    def kill(done: int, total: int) -> None:
        nonlocal seen
        seen += 1
        if seen > 12:
            raise KilledError

    target = tmp_path / "out"
    with pytest.raises(KilledError):
        export_safetensors([tmp_path / "store"], target, shard_bytes=10_000, progress=kill)
    finished = {path.name: path.stat().st_mtime_ns for path in target.glob("*.safetensors")}
    assert finished
    assert not list(target.glob("*.partial"))
    damaged = target / min(finished)
    raw = bytearray(damaged.read_bytes())
    raw[-1] ^= 1
    damaged.write_bytes(raw)
    report = export_safetensors([tmp_path / "store"], target, shard_bytes=10_000)
    assert report.kept == len(finished) - 1  # the checksum of the damaged one was wrong
    same_bits(auto_class("llama").from_pretrained(target), model)
    with pytest.raises(ConfigError, match="holds another export: shard bytes 10000 there, 20000 here; remove it"):
        export_safetensors([tmp_path / "store"], target, shard_bytes=20_000)
    with pytest.raises(ConfigError, match=r"expected an empty folder, found config\.json"):
        export_safetensors([tmp_path / "store"], tmp_path / "in")


def test_an_export_names_files_that_are_not_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save("gpt2", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    target = tmp_path / "out"
    target.mkdir()
    for number in range(12):
        (target / f"foreign-{number:02}").touch()
    with pytest.raises(ConfigError, match=r"expected an empty folder, found foreign-00, .*foreign-09 and 2 more; name"):
        export_safetensors([tmp_path / "store"], target)
    for number in range(12):
        (target / f"foreign-{number:02}").unlink()
    for foreign, said in ((None, ""), ("pytorch_model.bin", "not of this export, .*: pytorch_model.bin; remove")):
        if foreign:
            (target / foreign).touch()
        export_safetensors([tmp_path / "store"], target)
        assert re.search(said, caplog.text) if said else not caplog.text
        assert not foreign or (target / foreign).exists()


def test_a_disk_that_fills_up_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("llama", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    write = outputs.Output.write

    def full(output: outputs.Output, data: bytes) -> int:
        if output.written_bytes > 5000:
            raise OSError(28, "No space left on device")
        return write(output, data)

    monkeypatch.setattr(outputs.Output, "write", full)
    with pytest.raises(StoreSpaceError, match=r"model.safetensors.partial: No space left .*goes on after the files"):
        export_safetensors([tmp_path / "store"], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [JOURNAL_NAME]
    monkeypatch.undo()
    assert export_safetensors([tmp_path / "store"], tmp_path / "out").kept == 0


def test_too_little_room_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("llama", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"])
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(StoreSpaceError, match=r"expected \S+ [kM]B free on its disk, found 1 kB"):
        export_safetensors([tmp_path / "store"], tmp_path / "out")


def test_blocks_are_chosen_as_parallelize_does(tmp_path: Path) -> None:
    save("gpt2", tmp_path / "in")
    import_pretrained(tmp_path / "in", [tmp_path / "store"], blocks=["transformer.h.*.mlp"])
    _, manifest = open_reader([tmp_path / "store"])
    assert [block.name for block in manifest.blocks] == ["<root>", "transformer.h.0.mlp", "transformer.h.1.mlp"]
    with (
        luwu.open(tmp_path / "run", stores=[tmp_path / "store"], memory="64MiB") as session,
        pytest.raises(ManifestMismatchError, match="made for another model: parameter transformer"),
    ):
        luwu.parallelize(build("gpt2"), session)


def test_a_finished_import_from_before_keeps_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("llama", tmp_path / "in")
    small = ["model.layers.*.mlp.up_proj"]  # so that tables are large beside them
    with monkeypatch.context() as patched:
        patched.setattr(layout, "lay_out", lambda *args, **_: layout_of(*args, outer=False))
        import_pretrained(tmp_path / "in", [tmp_path / "store"], blocks=small)
    report = import_pretrained(tmp_path / "in", [tmp_path / "store"], blocks=small)
    assert report.finished_before
    _, manifest = open_reader([tmp_path / "store"])
    assert "model.embed_tokens" not in [block.name for block in manifest.blocks]
    import_pretrained(tmp_path / "in", [tmp_path / "new"], blocks=small)
    _, manifest = open_reader([tmp_path / "new"])
    assert {"model.embed_tokens", "lm_head"} <= {block.name for block in manifest.blocks}
