"""Errors of a run that can be known before it starts are reported then, by the rules that apply later."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from tests.unit.corpora import tokenizer_file
from typer.testing import CliRunner

from luwu import _native
from luwu.cli.main import app
from luwu.cli.train import count_vocabulary
from luwu.core.native import block_specs
from luwu.data.tokenizer import FileTokenizer, count_tokens
from luwu.errors import MemoryBudgetError
from luwu.launch.checks import check_memory
from luwu.launch.folder import RunFolder
from luwu.launch.settings import build_settings
from luwu.models.config_shape import least_shape
from luwu.models.gpt import GPT, Block, GPTConfig
from luwu.models.gpt_blocks import gpt_manifest
from luwu.models.pretrained import build_causal_on_meta
from luwu.models.sizes import OTHER_HEADS
from luwu.server.forecast import computed_least_memory, forecast, least_memory, manifest_of_sizes
from luwu.store.folders import StoreIdentity, write_identity
from luwu.worker.layout import describe


def least_of_the_server(manifest, workers):
    specs = block_specs(manifest)
    plan = _native.plan_store(specs, manifest.chunk_elements, manifest.optimizer, 1, 1, workers, False)
    return plan["minimum_bytes"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("optimizer", "workers", "vocabulary"), [("adamw", 1, 256), ("lion", 3, 5000)])
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("others", [{}, {"blocks.[01]": "float16", "<root>": "float32"}])
def test_the_least_budget_is_the_servers_own(dtype, optimizer, workers, vocabulary, outer, others, tmp_path):
    shape = {"layers": 3, "hidden": 192, "heads": 4, "seq": 64}
    with torch.device("meta"):
        model = GPT(GPTConfig(**shape, dropout=0.0, vocabulary=vocabulary))
    chosen = {pattern: getattr(torch, name) for pattern, name in others.items()}
    manifest = describe(model, [Block], getattr(torch, dtype), optimizer, chosen, outer=outer)
    if not outer:  # a store from before
        (tmp_path / "store").mkdir()
        write_identity([tmp_path / "store"], StoreIdentity("0" * 32, 1, manifest))
    least = least_of_the_server(manifest, workers)

    def settings(memory):
        run = {"memory": memory, "dtype": dtype, "block_dtypes": others, "workers": workers}
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
    plan = {"dtype": dtype, "optimizer": optimizer}
    listed = forecast(blocks, folders=1, memory_bytes=1, workers=workers, **plan).minimum_bytes
    manifest = manifest_of_sizes(blocks, **plan)
    assert least_memory(manifest, workers) == computed_least_memory(manifest, workers) == listed


def test_the_least_budget_of_a_large_model_of_several_dtypes_is_computed_as_the_server_does():
    model = build_settings({"model": {"layers": 4, "hidden": 2048, "heads": 4, "seq": 2048}}).model
    dtypes = {"blocks.1": "float32", "tokens": "float16"}
    manifest = gpt_manifest(model, 70_000, dtype="bfloat16", block_dtypes=dtypes, optimizer="adamw")
    assert computed_least_memory(manifest, 2) == least_memory(manifest, 2) == least_of_the_server(manifest, 2)


PATTERNS = [
    {},
    {"blocks.0": "float32"},
    {"<root>": "float32"},
    {"tokens": "float32"},
    {"norm": "float16", "positions": "float32"},
    {"blocks.[12]": "float16", "blocks.*": "float32", "<root>": "float16"},
    {"*": "float32", "blocks.0": "float16"},
]


@pytest.mark.parametrize("dtypes", PATTERNS)
@pytest.mark.parametrize(("hidden", "vocabulary", "seq"), [(48, 77, 20), (48, 5000, 3000), (3, 40, 9), (48, 150, 9000)])
def test_blocks_of_the_gpt_are_those_that_the_worker_lays_out(dtypes, hidden, vocabulary, seq):
    model = build_settings({"model": {"layers": 3, "hidden": hidden, "heads": 3, "seq": seq}}).model
    with torch.device("meta"):
        gpt = GPT(GPTConfig(layers=3, hidden=hidden, heads=3, seq=seq, vocabulary=vocabulary))
    chosen = {pattern: getattr(torch, name) for pattern, name in dtypes.items()}
    laid_out = describe(gpt, [Block], torch.bfloat16, "lion", block_dtypes=chosen)
    found = gpt_manifest(model, vocabulary, dtype="bfloat16", block_dtypes=dtypes, optimizer="lion")

    def blocks(manifest):
        return sorted((block.name, block.elements, manifest.dtype_of(block)) for block in manifest.blocks)

    assert blocks(found) == blocks(laid_out)


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 160, "max_position_embeddings": 128,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 93, "n_head": 3, "n_positions": 128}
CONFIGS = {
    "llama": LLAMA | {"hidden_size": 104, "num_hidden_layers": 9},
    "tied": LLAMA | {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 64},
    "single": LLAMA | {"num_hidden_layers": 1},
    "experts_that_are_none": LLAMA | {"num_experts": 8},
    "local_experts_that_are_none": LLAMA | {"num_local_experts": 8},
    "mistral": LLAMA | {"model_type": "mistral"},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4},
    "gpt2": GPT2 | {"n_inner": 100, "ffn_dim": 10_000},
    "opt": LLAMA | {
        "model_type": "opt", "ffn_dim": 200, "enable_bias": False, "layer_norm_elementwise_affine": False,
        "max_position_embeddings": 8,
    },
    "opt_with_a_narrow_table": LLAMA | {"model_type": "opt", "ffn_dim": 200, "word_embed_proj_dim": 8},
    "defaults": {
        name: value for name, value in LLAMA.items() if name != "num_key_value_heads"
    } | {"model_type": "mistral", "num_attention_heads": 48},
    "of_another_kind": LLAMA | {"model_type": "qwen3"},
}  # fmt: skip
NOT_KNOWN = {
    "single", "experts_that_are_none", "local_experts_that_are_none", "opt_with_a_narrow_table", "defaults",
    "of_another_kind",
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("vocabulary", [256, 40_000])
def test_a_budget_that_the_server_takes_is_never_refused_for_a_model_of_a_file(name, vocabulary, tmp_path):
    pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS[name] | {"vocab_size": vocabulary}))
    model = build_causal_on_meta(file, vocabulary=1, seq=2)
    part = least_shape(file)
    assert part is None or part.parameters <= sum(parameter.numel() for parameter in model.parameters())
    for dtype, others in (("float32", {}), ("float32", {"<root>": "float16"}), ("bfloat16", {})):
        chosen = {pattern: getattr(torch, other) for pattern, other in others.items()}
        for workers in (1, 3):
            manifest = describe(model, None, getattr(torch, dtype), "sgd", block_dtypes=chosen)
            least = least_of_the_server(manifest, workers)
            run = {"dtype": dtype, "block_dtypes": others, "workers": workers}
            settings = {"model": {"path": str(file)}, "optimizer": {"name": "sgd"}}
            check_memory(build_settings(settings, {"run": run | {"memory": least}}), vocabulary, RunFolder(tmp_path))
            small = build_settings(settings, {"run": run | {"memory": least // (8 if name == "gpt2" else 4)}})
            with (
                nullcontext() if name in NOT_KNOWN else pytest.raises(MemoryBudgetError, match=r"\d+MiB and some more")
            ):
                check_memory(small, vocabulary, RunFolder(tmp_path))


def test_the_budget_for_a_model_of_a_file_is_checked_by_its_store(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    manifest = replace(manifest_of_sizes([5000, 70_000, 70_000], dtype="bfloat16", optimizer="adamw"))
    manifest = replace(manifest, blocks=tuple(replace(block, dtype="float32") for block in manifest.blocks))
    write_identity([store], StoreIdentity("0" * 32, 1, manifest))
    least = least_of_the_server(manifest, 2)
    model = {"model": {"path": str(tmp_path / "config.json")}}
    check_memory(build_settings(model, {"run": {"memory": least}}), None, RunFolder(tmp_path))
    with pytest.raises(MemoryBudgetError, match="expected at least"):
        check_memory(build_settings(model, {"run": {"memory": least - 1}}), None, RunFolder(tmp_path))


def test_the_budget_of_a_gpt_is_checked_for_the_tokens_of_its_tokenizer(tmp_path):
    model = build_settings({"model": {"layers": 4, "hidden": 100, "heads": 4}}).model
    plan = {"dtype": "float32", "block_dtypes": {}, "optimizer": "adamw"}
    of_bytes, of_tokens = (least_memory(gpt_manifest(model, count, **plan), 4) for count in (256, 301))
    assert of_bytes > of_tokens, "fewer tokens may need a larger budget: their table is no block"
    words = {"model": {"vocab": {"a": 300}}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    assert count_vocabulary(build_settings({"data": {"tokenizer": str(tmp_path / "tokenizer.json")}})) == 301
    assert count_vocabulary(build_settings()) == 256


def test_a_vocabulary_that_is_not_known_yet_refuses_no_budget(tmp_path):
    check_memory(build_settings({"run": {"memory": "100KiB"}}), None, RunFolder(tmp_path))


def test_a_shape_of_which_a_model_has_more_is_known_of_large_models_at_once(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA | {"vocab_size": 2**40, "hidden_size": 2**40, "num_hidden_layers": 2**16}))
    assert least_shape(file).layers == 2**16
    with pytest.raises(MemoryBudgetError):
        check_memory(build_settings({"model": {"path": str(file)}}), 256, RunFolder(tmp_path))


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


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--block-dtype", "blocks.0=float32", "--dtype", "bfloat16"],
        ["--block-dtype", "<root>=float16"],
        ["--model", "config.json"],
        ["--model", "config.json", "--dtype", "bfloat16", "--block-dtype", "lm_head=float32"],
    ],
)
def test_a_budget_that_is_too_small_is_refused_before_anything_is_written(flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": 256}))
    result = CliRunner().invoke(app, ["train", "--data", "text", "--memory", "100KiB", *flags])
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
        ({"architectures": ["BertForMaskedLM"]}, [], "causal language model, found BertForMaskedLM; choose"),
    ],
)
def test_a_model_that_does_not_suit_its_data_is_refused_before_anything_is_written(
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


def test_no_class_that_predicts_the_next_token_is_refused_by_its_name():
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    assert not [name for name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if name.endswith(OTHER_HEADS)]


def test_tokens_are_counted_as_the_library_counts_them(tmp_path):
    file = tokenizer_file(tmp_path / "tokenizer.json")
    assert count_tokens(file) == FileTokenizer(file).vocabulary
    file.write_text('{"model": {"vocab": [["a", 0.0], ["b", -1.0]]}}')
    assert count_tokens(file) == 2


@pytest.mark.parametrize(
    "words",
    [[], {"model": {"vocab": {"a": -7}}}, {"model": {"vocab": {"a": 2**70}}}, {"model": {"vocab": {"a": 1e300}}}],
)
def test_a_tokenizer_without_a_sensible_number_of_tokens_has_none_that_is_counted(words, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    assert count_tokens(tmp_path) is None


def test_a_tokenizer_that_is_not_there_has_no_tokens_that_are_counted(tmp_path):
    assert count_tokens(tmp_path) is None
