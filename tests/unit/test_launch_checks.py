"""Errors of a run that can be known before it starts are reported then, by the rules that apply later."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext

import pytest
import torch
from tests.unit.corpora import tokenizer_file
from typer.testing import CliRunner

from luwu import _native
from luwu.cli.main import app
from luwu.core.native import block_specs
from luwu.data.tokenizer import FileTokenizer, count_tokens
from luwu.errors import MemoryBudgetError
from luwu.launch.checks import check_memory
from luwu.launch.folder import RunFolder
from luwu.launch.settings import build_settings
from luwu.models.gpt import GPT, Block, GPTConfig
from luwu.server.forecast import computed_least_memory, forecast, least_memory
from luwu.store.folders import StoreIdentity, write_identity
from luwu.worker.layout import describe


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("optimizer", "workers", "vocabulary"), [("adamw", 1, 256), ("lion", 3, 5000)])
@pytest.mark.parametrize("outer", [True, False])
def test_the_least_budget_is_the_servers_own(dtype, optimizer, workers, vocabulary, outer, tmp_path):
    shape = {"layers": 3, "hidden": 192, "heads": 4, "seq": 64}
    with torch.device("meta"):
        model = GPT(GPTConfig(**shape, dropout=0.0, vocabulary=vocabulary))
    manifest = describe(model, [Block], getattr(torch, dtype), optimizer, outer=outer)
    if not outer:  # a store from before
        (tmp_path / "store").mkdir()
        write_identity([tmp_path / "store"], StoreIdentity("0" * 32, 1, manifest))
    specs = block_specs(manifest)
    plan = _native.plan_store(specs, manifest.chunk_elements, optimizer, 1, 1, workers, False)
    least = plan["minimum_bytes"]

    def settings(memory):
        run = {"memory": memory, "dtype": dtype, "workers": workers}
        return build_settings({"model": shape, "run": run, "optimizer": {"name": optimizer}})

    check_memory(settings(least), vocabulary, RunFolder(tmp_path))
    with pytest.raises(MemoryBudgetError, match=r"run\.memory: expected at least \d+MiB for this model with \d worker"):
        check_memory(settings(least - 1), vocabulary, RunFolder(tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("optimizer", "workers", "blocks"),
    [
        ("adamw", 1, [70_016, 12 * 4096**2 + 32, *[12 * 4096**2] * 3]),
        ("adamw8bit", 2, [2**26, *[12 * 1024**2] * 5]),
        ("lion", 3, [2**26 + 96, *[98_304] * 40]),
        ("sgd", 1, [2**27]),
        ("adamw", 2, [4_096, 2**25, *[2**20] * 12, 2**25 + 32]),
    ],
)
def test_the_least_budget_of_a_large_model_is_computed_as_the_server_does(dtype, optimizer, workers, blocks):
    plan = {"dtype": dtype, "optimizer": optimizer, "workers": workers}
    listed = forecast(blocks, folders=1, memory_bytes=1, **plan).minimum_bytes
    assert least_memory(blocks, **plan) == computed_least_memory(blocks, **plan) == listed


@pytest.mark.parametrize(
    "shape",
    [
        {"layers": 1, "hidden": 2**20, "heads": 1, "seq": 2**24},
        {"layers": 15, "hidden": 2**18, "heads": 1},
        {"layers": 100_000, "hidden": 3_817, "heads": 1},
        {"layers": 100_000, "hidden": 4, "heads": 4},
    ],
)
@pytest.mark.parametrize("memory", ["1MiB", "8388607TiB"])
@pytest.mark.timeout(60)  # minutes, were the blocks of such models listed one by one
def test_the_budget_of_any_shape_is_checked_at_once(shape, memory, tmp_path):
    settings = build_settings({"model": shape, "run": {"memory": memory}})
    with pytest.raises(MemoryBudgetError) if memory == "1MiB" else nullcontext():
        check_memory(settings, 2**24, RunFolder(tmp_path))


def test_a_budget_that_is_too_small_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    result = CliRunner().invoke(app, ["train", "--data", "text", "--memory", "100KiB"])
    assert result.exit_code == 2 and result.stdout == ""
    assert "luwu: run.memory: expected at least " in result.stderr and "found 100KiB" in result.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("config", "flags", "says"),
    [
        ({"vocab_size": 200, "n_positions": 512}, [], "vocab_size: expected at least 256 for bytes, found 200"),
        ({"vocab_size": 400, "n_positions": 64}, [], "model.seq: expected at most 64, .* found 128"),
        ({"text_config": {"vocab_size": 256, "max_position_embeddings": 99}}, [], "expected at most 99"),
        ({"vocab_size": 256}, ["--tokenizer", "tokenizer.json"], "at least 300 for the tokens of the data, found 256"),
    ],
)
def test_a_model_that_is_too_small_for_its_data_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, config, flags, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = {"model": {"vocab": {"a": 0, "b": 298}}, "added_tokens": [{"id": 299, "content": "</s>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    result = CliRunner().invoke(app, ["train", "--data", "text", "--model", "config.json", *flags])
    assert result.exit_code == 2 and result.stdout == ""
    assert re.search(says, result.stderr), result.stderr
    assert not (tmp_path / "runs").exists()


def test_tokens_are_counted_as_the_library_counts_them(tmp_path):
    file = tokenizer_file(tmp_path / "tokenizer.json")
    assert count_tokens(file) == FileTokenizer(file).vocabulary
    file.write_text('{"model": {"vocab": [["a", 0.0], ["b", -1.0]]}}')
    assert count_tokens(file) == 2
    file.write_text("[]")
    assert count_tokens(file) is None
