"""Fine-tuning with adapters: peft first, then parallelize."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from tests.unit.fake_session import FakeSession
from tests.unit.worker_models import assert_same_state, assert_same_training, train
from torch import nn
from transformers import LlamaForCausalLM

from harness.model_families import batch, loss_of, make, on_meta
from luwu import AdamW, full_state_dict, parallelize
from luwu.errors import ConfigError
from luwu.worker.recipes import plain_name

TARGETS = {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "v_proj"], "vit": ["q_proj", "v_proj"]}


def adapted(model: nn.Module, family: str, **options) -> nn.Module:
    options.setdefault("target_modules", TARGETS[family])
    return get_peft_model(model, LoraConfig(r=4, lora_alpha=8, fan_in_fan_out=family == "gpt2", **options)).train()


def real(family: str, **options) -> nn.Module:
    torch.manual_seed(0)
    return adapted(make(family), family, **options)


def adapted_on_meta(family: str, **options) -> nn.Module:
    with torch.device("meta"):
        return adapted(make(family), family, **options)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gpt2", {}),
        ("llama", {}),
        ("vit", {}),
        ("llama", {"use_dora": True}),
        ("llama", {"modules_to_save": ["lm_head"]}),
        ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    ],
)
def test_adapters_train_as_with_torch(family, options):
    session = FakeSession()
    assert_same_training(real(family, **options), loss_of(family), session=session, tolerance=1e-5)
    blocks = {block.name: block for block in session.store.manifest.blocks}
    frozen = [name for name in blocks if name.endswith("(frozen)")]
    tables = [name for name in frozen if "embed_tokens" in name or "lm_head" in name]
    assert len(frozen) == 1 + len(tables) + (2 if family == "vit" else 3)  # the root's, and each table's and layer's
    assert len(tables) == (2 if family == "llama" else 0)
    trainable = [parameter.name for block in blocks.values() if block.trainable for parameter in block.parameters]
    assert all("lora_" in name or "modules_to_save" in name for name in trainable)
    pushed = {index for what, index in session.endpoint.log if what == "push"}
    assert pushed == {index for index, block in enumerate(blocks.values()) if block.trainable}


@pytest.mark.parametrize(
    ("family", "options"),
    [("gpt2", {}), ("llama", {"modules_to_save": ["lm_head"]}), ("llama", {"init_lora_weights": "gaussian"})],
)
def test_adapters_on_meta_start_as_peft_starts_them(family, options):
    """The base is as it starts without adapters, and a module that is trained as a whole as the one it replaces."""
    model, base = adapted_on_meta(family, **options), on_meta(family)
    parallelize(model, FakeSession(), seed=5)
    parallelize(base, FakeSession(), seed=5)
    expected = full_state_dict(base)
    twin = real(family, **options)
    values = full_state_dict(model)
    for name, peft_has in twin.state_dict().items():
        if "lora_A" in name:
            assert abs(float(values[name].std() / peft_has.std()) - 1) < 0.4, name
        elif "lora_B" in name:
            assert not values[name].any(), name
        else:
            assert torch.equal(values[name], expected[plain_name(name)]), name
    twin.load_state_dict(values)
    parallelize(twin, FakeSession())
    losses = [train(each, AdamW(each, lr=1e-2), range(2), loss_of(family)) for each in (model, twin)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("option", ["pissa", "use_dora"])
def test_what_needs_the_base_cannot_start_on_meta(option):
    options = {"init_lora_weights": "pissa"} if option == "pissa" else {"use_dora": True}
    with pytest.raises(ConfigError, match=r"build the model on the CPU|magnitude_vector.*expected init to set all"):
        parallelize(adapted_on_meta("llama", **options), FakeSession())


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["lm_head"]}], ids=["adapters", "and a head"])
def test_saved_adapters_give_the_same_logits_in_plain_peft(options, tmp_path):
    torch.manual_seed(0)
    base = make("llama")
    model = adapted(copy.deepcopy(base), "llama", **options)
    session = FakeSession()
    parallelize(model, session)
    train(model, AdamW(model, lr=1e-2), range(3), loss_of("llama"))
    session.endpoint.log.clear()
    adapters = full_state_dict(model, trainable_only=True)
    assert ("pull", 0) not in session.endpoint.log or options  # the root has nothing to train: it stays where it is
    assert len(adapters) == 12 + len(options)
    assert len(get_peft_model_state_dict(model, state_dict=adapters)) == len(adapters)
    with pytest.raises(ConfigError, match="trainable_only=True"):
        model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path, state_dict=adapters)
    loaded = PeftModel.from_pretrained(base, tmp_path).eval()
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(**batch("llama", 7)).logits, loaded(**batch("llama", 7)).logits)
    ids = batch("llama", 7)["input_ids"][:2, :5]
    asked = {"input_ids": ids, "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(model.generate(**asked), loaded.generate(**asked))  # peft calls the model that it wraps


def test_trainable_only_is_the_rest_of_full():
    model = real("llama")
    parallelize(model, FakeSession())
    everything = full_state_dict(model)
    adapters = full_state_dict(model, trainable_only=True)
    assert_same_state(adapters, {name: value for name, value in everything.items() if "lora_" in name}, 0.0)


def test_saved_adapters_of_a_bfloat16_job_in_plain_peft(tmp_path):
    """docs/fine-tuning.md: the same logits where peft leaves adapters in bfloat16; by default it makes them float32."""
    model = real("llama")
    copy.deepcopy(model).unload().save_pretrained(tmp_path / "base")
    base = LlamaForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
    parallelize(model, FakeSession(), dtype=torch.bfloat16)
    train(model, AdamW(model, lr=1e-2), range(3), loss_of("llama"))
    adapters = tmp_path / "adapters"
    model.save_pretrained(adapters, state_dict=full_state_dict(model, trainable_only=True))
    model.eval()
    with torch.no_grad():
        ours = model(**batch("llama", 7)).logits
        same = PeftModel.from_pretrained(copy.deepcopy(base), adapters, autocast_adapter_dtype=False).eval()
        assert torch.equal(same(**batch("llama", 7)).logits, ours)
        other = PeftModel.from_pretrained(base, adapters).eval()
        found = other(**batch("llama", 7)).logits
        assert not torch.equal(found, ours)
        torch.testing.assert_close(found, ours, rtol=0.05, atol=0.05)
