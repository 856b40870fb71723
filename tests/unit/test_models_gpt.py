from __future__ import annotations

import math

import pytest
import torch

from luwu.models.gpt import GPT, VOCABULARY, Block, GPTConfig, generate

CONFIG = GPTConfig(layers=2, hidden=32, heads=4, seq=16)


def test_a_model_starts_out_knowing_nothing():
    torch.manual_seed(0)
    ids, targets = torch.randint(0, VOCABULARY, (2, 4, 16))
    model = GPT(CONFIG)
    logits, loss = model(ids).logits, model(ids, targets).loss
    assert logits.shape == (4, 16, VOCABULARY)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    assert loss.item() == pytest.approx(math.log(VOCABULARY), rel=0.02)


def test_no_position_sees_what_comes_after_it():
    model = GPT(CONFIG).eval()
    ids = torch.randint(0, VOCABULARY, (1, 16))
    changed = ids.clone()
    changed[0, 9:] = (changed[0, 9:] + 1) % VOCABULARY
    assert torch.equal(model(ids).logits[:, :9], model(changed).logits[:, :9])
    assert not torch.equal(model(ids).logits[:, 9:], model(changed).logits[:, 9:])


def test_every_owner_of_parameters_can_initialise_itself_from_meta():
    with torch.device("meta"):
        model = GPT(CONFIG)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, math.nan)
    for module in model.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.reset_parameters()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_the_residual_stream_starts_alike_at_any_depth():
    torch.manual_seed(0)
    for layers in (1, 16):
        block = Block(GPTConfig(layers=layers, hidden=128, heads=4, seq=16))
        expected = 0.02 / math.sqrt(2 * layers)
        assert block.contract.weight.std().item() == pytest.approx(expected, rel=0.05)
        assert block.attention.output.weight.std().item() == pytest.approx(expected, rel=0.05)


def test_dropout_acts_only_in_training():
    model = GPT(GPTConfig(layers=1, hidden=32, heads=4, seq=16, dropout=0.5))
    ids = torch.randint(0, VOCABULARY, (1, 16))
    assert not torch.equal(model(ids).logits, model(ids).logits)
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_it_learns_a_short_text():
    torch.manual_seed(0)
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.tensor([list(b"abcdefghijklmnopq")])
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(ids[:, :-1], ids[:, 1:]).loss
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    prompt = torch.tensor(list(b"abc"))
    assert bytes(generate(model, prompt, 8, CONFIG.seq, 0.1, seed=0).tolist()) == b"abcdefghijk"


def test_generation_is_repeatable_and_leaves_the_global_generator_alone():
    model = GPT(CONFIG)
    prompt = torch.tensor(list(b"ab"))
    state = torch.get_rng_state()
    first = generate(model, prompt, 30, CONFIG.seq, 1.0, seed=5)
    assert torch.equal(first, generate(model, prompt, 30, CONFIG.seq, 1.0, seed=5))
    assert not torch.equal(first, generate(model, prompt, 30, CONFIG.seq, 1.0, seed=6))
    assert first.shape == (32,)
    assert torch.equal(torch.get_rng_state(), state)
