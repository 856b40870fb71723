"""Starting from a checkpoint: streamed into the store, under the names that its library gives them."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import save_file
from tests.unit.fake_session import FakeSession, FakeStore
from tests.unit.worker_models import assert_same_state
from torch import nn

from harness.model_families import CAUSAL, batch, make, on_meta
from harness.small_models import Tiny
from luwu import full_state_dict, parallelize
from luwu.errors import CheckpointError
from luwu.store.checkpoint import CheckpointReader


def saved(family: str, folder, **options) -> nn.Module:
    torch.manual_seed(1)
    model = make(family).eval()
    model.save_pretrained(folder, **options)
    return model


@pytest.mark.parametrize("family", [*CAUSAL, "bert_mlm", "vit", "t5"])
def test_a_folder_of_transformers_is_the_start(family, tmp_path):
    twin = saved(family, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = on_meta(family).eval()
    parallelize(model, FakeSession(), weights=tmp_path)
    assert_same_state(full_state_dict(model), twin.state_dict(), 0.0)
    with torch.no_grad():
        assert torch.equal(model(**batch(family, 0)).logits, twin(**batch(family, 0)).logits)


def test_one_tensor_at_a_time(tmp_path, monkeypatch):
    """Tensors come in the order of the units, and none is read where the store has values already."""
    saved("llama", tmp_path)
    read: list[str] = []
    original = CheckpointReader.read_range
    monkeypatch.setattr(
        CheckpointReader,
        "read_range",
        lambda self, name, first, count: read.append(name) or original(self, name, first, count),
    )
    store = FakeStore()
    parallelize(on_meta("llama"), FakeSession(store), weights=tmp_path)
    order = ["model.norm", "model.embed_tokens", *(f"model.layers.{layer}" for layer in range(3)), "lm_head"]
    units = [next(unit for unit in order if name.startswith(unit)) for name in read]
    assert units == sorted(units, key=order.index)
    assert len(read) == len(set(read)) == 3 + 3 * 9
    read.clear()
    parallelize(on_meta("llama"), FakeSession(store), weights=tmp_path)
    assert read == []


def test_experts_are_joined_from_tensors_of_their_own(tmp_path):
    twin = saved("mixtral", tmp_path)
    names = CheckpointReader(tmp_path).names()
    assert not set(twin.state_dict()) <= set(names)  # the library saves them apart
    model = on_meta("mixtral")
    parallelize(model, FakeSession(), weights=tmp_path)
    assert_same_state(full_state_dict(model), twin.state_dict(), 0.0)


def test_a_checkpoint_without_the_prefix_and_a_tied_head(tmp_path):
    """The checkpoint is like GPT-2's own: the names of the model inside, and no head."""
    twin = saved("gpt2", tmp_path)
    values = {name.removeprefix("transformer."): value for name, value in twin.state_dict().items()}
    values.pop("lm_head.weight")
    save_file({name: value.clone() for name, value in values.items()}, tmp_path / "bare.safetensors")
    model = on_meta("gpt2")
    parallelize(model, FakeSession(), weights=tmp_path / "bare.safetensors")
    assert model.lm_head.weight is model.transformer.wte.weight
    assert_same_state(full_state_dict(model), twin.state_dict(), 0.0)


def test_the_base_of_an_adapted_model(tmp_path):
    twin = saved("llama", tmp_path)
    with torch.device("meta"):
        settings = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
        model = get_peft_model(make("llama"), settings)
    parallelize(model, FakeSession(), weights=tmp_path)
    values = full_state_dict(model)
    inner = "base_model.model."
    assert torch.equal(values[f"{inner}lm_head.modules_to_save.default.weight"], twin.lm_head.weight)
    name = "model.layers.1.self_attn.q_proj"
    assert torch.equal(values[f"{inner}{name}.base_layer.weight"], twin.state_dict()[f"{name}.weight"])
    assert values[f"{inner}{name}.lora_A.default.weight"].any()
    with torch.no_grad():
        assert torch.equal(model.eval()(**batch("llama", 0)).logits, twin(**batch("llama", 0)).logits)


def test_any_model_and_its_buffers(tmp_path):
    torch.manual_seed(2)
    make_it = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))  # noqa: E731
    twin = make_it()
    twin(torch.randn(8, 3))
    save_file(twin.state_dict(), tmp_path / "model.safetensors")
    for model in (make_it(), make_it().to("meta")):
        parallelize(model, FakeSession(), weights=tmp_path / "model.safetensors")
        assert_same_state(full_state_dict(model), twin.state_dict(), 0.0)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_bfloat16_files_are_read_into_float32_masters(family, tmp_path):
    twin = saved(family, tmp_path).to(torch.bfloat16)
    twin.save_pretrained(tmp_path)
    model = on_meta(family)
    parallelize(model, FakeSession(), weights=tmp_path)
    expected = {name: value.float() for name, value in twin.state_dict().items()}
    assert_same_state(full_state_dict(model), expected, 0.0)


def refused(model: nn.Module, weights) -> str:
    session = FakeSession()
    with pytest.raises(CheckpointError) as caught:
        parallelize(model, session, weights=weights)
    assert session.store.manifest is None  # before anything is written
    return str(caught.value)


def test_what_does_not_fit_is_named(tmp_path):
    model = saved("llama", tmp_path)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    path = tmp_path / "other.safetensors"

    def message(change) -> str:
        changed = dict(values)
        change(changed)
        save_file(changed, path)
        return refused(on_meta("llama"), path)

    norm = "model.layers.1.input_layernorm.weight"
    assert f"1 of 30 tensors are missing: {norm}" in message(lambda found: found.pop(norm))
    assert "1 tensors are not the model's: model.extra" in message(
        lambda found: found.update({"model.extra": torch.ones(2)})
    )
    found = message(lambda found: found.update({norm: torch.ones(3)}))
    assert f"tensor {norm}: expected shape [32], found [3]" in found and "other.safetensors" in found
    assert "name a checkpoint of this model" in found
    for dtype in (torch.int8, torch.float8_e4m3fn):  # their numbers mean nothing without scales
        found = message(lambda found, dtype=dtype: found.update({norm: torch.ones(32).to(dtype)}))
        assert f"tensor {norm}: expected float32, bfloat16, float16 or float64, found {dtype}" in found


def test_half_downloaded_shards_are_named(tmp_path):
    saved("llama", tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shard = tmp_path / sorted(set(index["weight_map"].values()))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    assert shard.name in refused(on_meta("llama"), tmp_path)
    shard.unlink()
    assert f"shards are missing: {shard.name}" in refused(on_meta("llama"), tmp_path)


def test_experts_of_another_shape_are_named(tmp_path):
    saved("mixtral", tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    gone = next(name for name in sorted(values) if ".experts.3." in name)
    del values[gone]
    save_file(values, tmp_path / "model.safetensors")
    message = refused(on_meta("mixtral"), tmp_path)
    assert "expected all parts of model.layers.0.mlp.experts." in message


def test_a_model_without_a_library(tmp_path):
    torch.manual_seed(0)
    twin = Tiny(tied=True)
    values = {name: value for name, value in twin.state_dict().items() if name != "embed.weight"}
    save_file(values, tmp_path / "model.safetensors")
    model = Tiny(tied=True)
    parallelize(model, FakeSession(), weights=tmp_path)
    assert_same_state(full_state_dict(model), twin.state_dict(), 0.0)
