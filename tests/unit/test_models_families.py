"""Families of models that people train: as with plain torch, from meta as from memory, with nothing to configure."""

import copy

import pytest
import torch
from tests.unit.fake_session import FakeSession, FakeStore
from tests.unit.worker_models import assert_same_state, assert_same_training, train
from torch import nn

from harness.model_families import CAUSAL, FAMILIES, batch, loss_of, make, on_meta
from luwu import AdamW, full_state_dict, parallelize
from luwu.errors import ConfigError, StepOrderError
from luwu.worker.select import select_modules

REPEATED = {
    "gpt2": ["transformer.h.0", "transformer.h.1", "transformer.h.2"],
    "opt": [f"model.decoder.layers.{layer}" for layer in range(3)],
    "bert_mlm": ["bert.encoder.layer.0", "bert.encoder.layer.1"],
    "bert_classifier": ["bert.encoder.layer.0", "bert.encoder.layer.1"],
    "vit": ["vit.layers.0", "vit.layers.1"],
    "t5": ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"],
    "cnn": ["layer1.0", "layer1.1", "layer2.0", "layer2.1"],
} | {
    family: [f"model.layers.{layer}" for layer in range(3)]
    for family in ("llama", "llama_tied", "qwen2", "qwen3", "mixtral", "recurrent_gemma")
}


def real(family: str) -> nn.Module:
    torch.manual_seed(0)
    return make(family).train()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_with_torch(family):
    """Losses, parameters and buffers: AdamW, recomputing every layer, dropout off, a padded row."""
    model = real(family)
    assert [name for name, _ in select_modules(model, None)] == REPEATED[family]
    assert_same_training(model, loss_of(family), tolerance=1e-5)


@pytest.mark.parametrize("family", ["llama", "t5", "mixtral", "cnn"])
def test_a_family_trains_without_recomputing(family):
    assert_same_training(real(family), loss_of(family), tolerance=1e-5, checkpoint=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_on_meta_needs_nothing(family):
    """Its library's own initialisation, buffers as the constructor makes them, and then the same bits as in memory."""
    model, twin = on_meta(family).train(), real(family)
    parallelize(model, FakeSession(), seed=3)
    values = full_state_dict(model)
    for name, expected in twin.state_dict().items():
        found = values[name].float()
        if expected.dim() >= 2 and expected.numel() >= 512:
            assert abs(float(found.std() / expected.float().std()) - 1) < 0.2, name
        elif expected.dim() == 1:
            assert torch.equal(found == 0, expected == 0), name
    for (name, buffer), (_, expected) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(buffer, expected, rtol=0, atol=0, msg=lambda text, n=name: f"{n}: {text}")
    twin.load_state_dict(values)
    parallelize(twin, FakeSession())
    losses = [train(each, AdamW(each, lr=1e-2), range(2), loss_of(family)) for each in (model, twin)]
    assert losses[0] == losses[1]
    assert_same_state(full_state_dict(model), full_state_dict(twin), 0.0)


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "vit"])
def test_meta_gives_the_same_bits_for_finer_blocks_and_a_second_rank(family):
    states = []
    for blocks in (None, [], [nn.Linear, "*.attn", "*.mlp"] if family == "gpt2" else [nn.Linear]):
        store = FakeStore()
        for rank in range(2):
            model = on_meta(family)
            parallelize(model, FakeSession(store, rank=rank), blocks, seed=7)
            states.append(full_state_dict(model) | dict(model.named_buffers()))
    for state in states[1:]:
        assert_same_state(state, states[0], 0.0)


def test_what_a_module_writes_inside_another_unit():
    """GPT-2's attention scales down the projection inside it; here that is a unit of its own."""
    model = on_meta("gpt2")
    parallelize(model, FakeSession(), ["*.c_proj", "*.h.*"], seed=7)
    coarse = on_meta("gpt2")
    parallelize(coarse, FakeSession(), seed=7)
    assert_same_state(full_state_dict(model), full_state_dict(coarse), 0.0)
    scaled = full_state_dict(model)["transformer.h.1.attn.c_proj.weight"]
    assert abs(float(scaled.std()) - 0.02 / (2 * 3) ** 0.5) < 0.001


def test_running_statistics_are_updated_once_a_step():
    model = real("cnn")
    buffers = dict(model.named_buffers())
    parallelize(model, FakeSession())
    train(model, AdamW(model), range(3), loss_of("cnn"))
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())  # others may hold them too
    counts = {name: int(buffer) for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")}
    assert len(counts) == 10 and set(counts.values()) == {3}
    with torch.no_grad():
        model(**batch("cnn", 9))  # still in training mode: torch counts this one too
    assert {int(buffer) for name, buffer in model.named_buffers() if name.endswith("tracked")} == {4}


def test_a_recompute_sees_the_buffers_of_its_forward():
    """Spectral norm moves its vectors in every forward, and its weight depends on them."""
    torch.manual_seed(0)
    layers = [nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(6, 1))
    assert_same_training(
        model, lambda each, step: each(torch.full((3, 6), 1.0 + step)).square().mean(), blocks=["0", "1"]
    )


def test_generate_gives_what_plain_torch_gives():
    for family in ("gpt2", "llama", "t5", "recurrent_gemma"):
        model = real(family).eval()
        twin = copy.deepcopy(model)
        ids = batch(family, 0)["input_ids"][:2, :5]
        options = {"max_new_tokens": 6, "do_sample": False}
        session = FakeSession()
        parallelize(model, session)
        for search in ({}, {"num_beams": 2}) if family == "llama" else ({},):
            assert torch.equal(model.generate(ids, **options, **search), twin.generate(ids, **options, **search))
        assert session.endpoint.held == set()


def test_caches_are_for_generation():
    model = real("llama")
    twin = copy.deepcopy(model)
    ids = batch("llama", 0)["input_ids"]
    with torch.no_grad():
        cache = twin(ids[:, :8], use_cache=True).past_key_values
        expected = twin(ids[:, 8:], past_key_values=copy.deepcopy(cache)).logits
    parallelize(model, FakeSession())
    AdamW(model)
    with torch.no_grad():
        assert torch.equal(model(ids[:, 8:], past_key_values=copy.deepcopy(cache)).logits, expected)
    assert model(ids, use_cache=True).past_key_values.get_seq_length() == 0  # with gradients it stays empty
    with pytest.raises(ConfigError, match=r"block model\.layers\.0: .*found a cache of 8 tokens.*checkpoint=False"):
        model(ids[:, 8:], past_key_values=copy.deepcopy(cache))
    kept = copy.deepcopy(twin)
    parallelize(kept, FakeSession(), checkpoint=False)
    AdamW(kept)
    torch.testing.assert_close(kept(ids[:, 8:], past_key_values=copy.deepcopy(cache)).logits, expected)


def test_gradient_checkpointing_of_transformers():
    model = real("gpt2")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert_same_training(model, loss_of("gpt2"), tolerance=1e-5)
    model = real("gpt2")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    parallelize(model, FakeSession())
    AdamW(model)
    with pytest.raises(StepOrderError, match="use no reentrant checkpointing inside the model"):
        loss_of("gpt2")(model, 0).backward()


def test_a_part_of_the_model_may_be_called_alone_without_gradients():
    model = real("t5").eval()
    twin = copy.deepcopy(model)
    parallelize(model, FakeSession())
    ids = batch("t5", 0)["input_ids"]
    with torch.no_grad():
        assert torch.equal(model.get_encoder()(ids).last_hidden_state, twin.get_encoder()(ids).last_hidden_state)
        assert torch.equal(model.shared(ids), twin.shared(ids))
    with pytest.raises(StepOrderError, match=r"module encoder: called with gradients on its own"):
        model.get_encoder()(ids)


@pytest.mark.parametrize("family", ["gpt2", "mixtral"])
def test_saving_asks_for_the_values(family, tmp_path):
    model = real(family).eval()
    twin = copy.deepcopy(model)
    parallelize(model, FakeSession())
    with pytest.raises(ConfigError, match=r"state_dict=luwu\.full_state_dict\(model\)"):
        model.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []
    model.save_pretrained(tmp_path, state_dict=full_state_dict(model))
    loaded = type(twin).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(**batch(family, 0)).logits, twin(**batch(family, 0)).logits)


class Mixed(nn.Module):
    """A list with layers of two kinds, one of them just once, and a list of small things beside it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.layers = nn.ModuleList([layer, copy.deepcopy(layer), nn.GRUCell(8, 8)])
        self.scales = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))


def test_layers_of_several_kinds_are_found():
    assert [name for name, _ in select_modules(Mixed(), None)] == ["layers.0", "layers.1", "layers.2"]


def test_a_write_to_a_pulled_parameter_is_seen_before_the_step():
    class Clamped(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(-0.01, 0.01)
            return super().forward(x)

    model = nn.Sequential(Clamped(4, 4), nn.Linear(4, 4))
    session = FakeSession()
    parallelize(model, session, [nn.Linear])
    AdamW(model)
    with pytest.raises(ConfigError, match=r"parameter 0\.weight: .*found it written in place"):
        model(torch.ones(2, 4))
    assert session.step == 0


def test_every_causal_family_is_in_the_list():
    assert set(CAUSAL) < set(REPEATED) == set(FAMILIES)
