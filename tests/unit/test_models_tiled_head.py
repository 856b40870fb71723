"""Models of transformers whose losses are computed in tiles: as with whole logits, which never exist."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.unit.fake_session import FakeSession
from tests.unit.largest_tensor import LargestTensor
from tests.unit.worker_models import assert_same_state, plain_adamw, train
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaForCausalLM,
    OPTConfig,
)

import luwu
from harness.model_families import CAUSAL, HEADS, LENGTH, SMALL, batch, make
from luwu.errors import ConfigError
from luwu.models.deferred_logits import DeferredLogits
from luwu.models.language import CausalForward
from luwu.worker import tiled_loss

VOCABULARY, ROWS = 509, 32
TILE = 8 * VOCABULARY
LAYERS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
}
"""Families whose models do something to their logits, or to what their logits are made of."""
PECULIAR = {
    "opt_projected": lambda: OPTConfig(
        **SMALL, hidden_size=32, word_embed_proj_dim=16, ffn_dim=48, num_hidden_layers=2, num_attention_heads=HEADS,
        dropout=0.0,
    ),
    "opt_untied": lambda: OPTConfig(
        **SMALL, hidden_size=32, word_embed_proj_dim=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=HEADS,
        dropout=0.0, tie_word_embeddings=False,
    ),
    "gemma2": lambda: Gemma2Config(**SMALL | LAYERS, head_dim=8, final_logit_softcapping=0.5),
    "cohere": lambda: CohereConfig(**SMALL | LAYERS, logit_scale=3.0),
    "granite": lambda: GraniteConfig(**SMALL | LAYERS, logits_scaling=0.2),
    "bert": lambda: BertConfig(
        **SMALL, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS, is_decoder=True,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ),
}  # fmt: skip
FAMILIES = [*CAUSAL, *PECULIAR]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiled_loss, "_TILE_ELEMENTS", TILE)


def build(family: str) -> nn.Module:
    config = CAUSAL[family](32) if family in CAUSAL else PECULIAR[family]()
    config.vocab_size = VOCABULARY
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).train()
    with torch.no_grad():  # larger than at first, so that scales and caps matter
        model.get_output_embeddings().weight.mul_(10.0)
    return model


def data(step: int = 0, rows: int = ROWS) -> dict[str, Tensor]:
    found = batch("llama", step, rows)
    found["labels"][1, 4:7] = -100
    return found


def loss_of(model: nn.Module, step: int) -> Tensor:
    return model(**data(step)).loss


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_whole_logits(family):
    model = build(family)
    twin = copy.deepcopy(model)
    luwu.tile_head(model)
    found, expected = model(**data()), twin(**data())
    assert model.forward.tiled and found.logits is None
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    found.loss.backward()
    expected.loss.backward()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 1e-5 * theirs.grad.norm() + 1e-8, name
    model.eval(), twin.eval()
    with torch.no_grad():
        assert model(**data()).loss.item() == pytest.approx(twin(**data()).loss.item(), rel=1e-6)
        assert torch.equal(model(data()["input_ids"]).logits, twin(data()["input_ids"]).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_a_batch_never_exist(family):
    # mixtral hands router logits out past its layers' outputs; recurrent_gemma's layers keep tensors in attributes.
    micro_batch_size = None if family in ("mixtral", "recurrent_gemma") else 3
    whole = ROWS * LENGTH * VOCABULARY
    model = build(family)
    twin = copy.deepcopy(model)
    luwu.parallelize(luwu.tile_head(model), FakeSession(), micro_batch_size=micro_batch_size)
    optimizer, plain = luwu.AdamW(model, lr=1e-3), plain_adamw(twin, lr=1e-3)
    with LargestTensor() as ours:
        losses = train(model, optimizer, range(2), loss_of)
        with torch.no_grad():
            model(**data())
    with LargestTensor() as theirs:
        expected = train(twin, plain, range(2), loss_of)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_same_state(luwu.full_state_dict(model), twin.state_dict(), 1e-4)  # Adam enlarges gradients that are noise
    assert ours.elements < whole / 2 and theirs.elements >= whole


@pytest.mark.parametrize("family", ["gpt2", "opt_projected", "mixtral", "bert"])
def test_targets_that_are_shifted_already(family):
    """Call models as `luwu train` and `luwu eval` do, whatever their own code does with labels."""
    model = build(family).eval()
    twin = copy.deepcopy(model)
    predict = CausalForward(model, VOCABULARY)
    assert not predict.tiled
    luwu.parallelize(model, FakeSession())
    ids = data()["input_ids"]
    logits = twin(ids[:, :-1]).logits
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    with torch.no_grad(), LargestTensor() as largest:
        found = predict(ids[:, :-1], ids[:, 1:])
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert predict.tiled and found.logits is None and largest.elements < logits.numel() / 2
    with torch.no_grad():
        assert torch.equal(predict(ids[:, :-1]).logits, logits)


def test_what_else_the_library_does_with_losses():
    model = build("llama")
    twin = copy.deepcopy(model)
    luwu.tile_head(luwu.tile_head(model))
    options = data() | {"num_items_in_batch": torch.tensor(77)}
    torch.testing.assert_close(model(**options).loss, twin(**options).loss)
    (loss,) = model(**data(), return_dict=False, use_cache=False)
    torch.testing.assert_close(loss, twin(**data()).loss)
    ids, mask = data()["input_ids"], data()["attention_mask"]
    by_position = model(ids, mask, None, None, None, data()["labels"])
    torch.testing.assert_close(by_position.loss, loss)
    assert model.generate(ids[:1, :4], max_new_tokens=3, do_sample=False).shape == (1, 7)


def test_bfloat16_is_as_near_as_whole_logits():
    exact = build("llama")
    losses = {}
    for name in ("tiled", "whole"):
        model = copy.deepcopy(exact).to(torch.bfloat16)
        losses[name] = (luwu.tile_head(model) if name == "tiled" else model)(**data()).loss.item()
    assert losses["tiled"] == pytest.approx(losses["whole"], rel=1e-5)


def test_adapters():
    base = build("llama")
    twin = get_peft_model(copy.deepcopy(base), LoraConfig(r=4, target_modules=["q_proj"]))
    model = get_peft_model(luwu.tile_head(base), LoraConfig(r=4, target_modules=["q_proj"]))
    model.load_state_dict(twin.state_dict())
    luwu.parallelize(model, FakeSession())
    with LargestTensor() as largest:
        losses = train(model, luwu.AdamW(model, lr=1e-2), range(3), loss_of)
    assert losses == pytest.approx(train(twin, plain_adamw(twin, lr=1e-2), range(3), loss_of), rel=1e-5)
    assert largest.elements < ROWS * LENGTH * VOCABULARY / 2


class Inventive(LlamaForCausalLM):
    """A model that does to its logits what nobody has foreseen."""

    def forward(self, input_ids, labels=None, **options):
        output = super().forward(input_ids, **options)
        output.logits[..., 7].sub_(1.0)
        output.logits.mul_(2.0)
        loss = None if labels is None else self.loss_function(output.logits, labels, self.config.vocab_size)
        return output.__class__(loss=loss, logits=output.logits)


def test_deferred_logits_are_a_tensor_like_any_other():
    """Whatever is done to them, in place and through views too, has the result that it has of the logits."""
    torch.manual_seed(3)
    head, hidden = nn.Linear(4, 6), torch.randn(2, 3, 4)

    def written(logits: Tensor) -> Tensor:
        flat, scaled = logits.float().view(-1, 6), logits * 2
        flat[:, 1] = 5.0
        return torch.stack([logits.flatten(0, 1), flat, scaled.view(6, 6)])

    for use in (
        written,
        lambda logits: logits.argmax(-1),
        lambda logits: logits.view(2, 3, 2, 3).sum(1),
        lambda logits: logits.transpose(0, 1).contiguous().tanh() / torch.arange(1, 7),
        lambda logits: torch.cat([logits, 1.0 - logits]).to(torch.bfloat16),
        lambda logits: nn.functional.cross_entropy(logits.view(-1, 6), torch.ones(6, 6) / 6),
        lambda logits: nn.functional.cross_entropy(logits.view(-1, 6), torch.arange(6), torch.arange(6.0)),
        lambda logits: nn.functional.cross_entropy(logits.view(-1, 6), torch.arange(6), reduction="none"),
        lambda logits: nn.functional.cross_entropy((3 * logits).bfloat16().float().view(-1, 6), torch.arange(6)),
        lambda logits: nn.functional.cross_entropy(logits.reshape(6, 6).to(torch.float64) / 2, torch.arange(6)),
        lambda logits: torch.tensor([*logits.shape, logits.dim(), logits.size(-1), logits.numel(), len(logits)]),
    ):
        found = use(DeferredLogits(hidden, head.weight, head.bias, lambda name: None))
        assert not isinstance(found, DeferredLogits)
        torch.testing.assert_close(found, use(head(hidden)))


def with_replaced_forward(model: nn.Module) -> nn.Module:
    head = model.get_output_embeddings()
    original = head.forward
    head.forward = lambda hidden: original(hidden) / 2.0
    return model


def with_adapted_head(model: nn.Module) -> nn.Module:
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "lm_head"]))


def inventive(model: nn.Module) -> nn.Module:
    model.__class__ = Inventive
    return model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (inventive, "its code uses all of them for __getitem__"),
        (with_adapted_head, r"its head is a peft\..*Linear, expected torch\.nn\.Linear"),
        (with_replaced_forward, "the forward of its head has been replaced"),
    ],
)
def test_where_it_needs_all_logits_the_loss_is_right_and_says_why(change, reason):
    model, twin = luwu.tile_head(change(build("llama"))), change(build("llama"))
    with pytest.warns(UserWarning, match=f"the logits of the whole batch at once, because {reason}"):
        found = model(**data())
    expected = twin(**data())
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.logits, expected.logits)
    assert not model.forward.tiled
    found.loss.backward()
    expected.loss.backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**data())  # says it once


def test_a_head_that_is_a_block_and_autocast():
    model = build("llama")
    luwu.parallelize(luwu.tile_head(model), FakeSession(), [nn.Linear])
    luwu.AdamW(model)
    with pytest.warns(UserWarning, match="its head is a block of its own; leave it out of `blocks`"):
        assert torch.isfinite(model(**data()).loss)
    model = build("bert")
    expected = model(**data()).loss.item()
    luwu.parallelize(luwu.tile_head(model), FakeSession(), ["cls"])  # with the head inside
    luwu.AdamW(model)
    with pytest.warns(UserWarning, match="its code uses all of them for"):
        assert model(**data()).loss.item() == pytest.approx(expected, rel=1e-6)
    model = luwu.tile_head(build("llama"))
    with pytest.warns(UserWarning, match="autocast is on"), torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(model(**data()).loss)


def test_what_is_no_language_model_is_refused():
    with pytest.raises(ConfigError, match=r"a language model's head.*found Linear without"):
        luwu.tile_head(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="a language model's head"):
        luwu.tile_head(make("vit"))
    model = build("gpt2")
    luwu.parallelize(model, FakeSession())
    with pytest.raises(ConfigError, match=r"expected one that is not parallelized.*call luwu\.tile_head before"):
        luwu.tile_head(model)
