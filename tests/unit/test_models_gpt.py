from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from luwu.models.generation import Sampling, choose, generate
from luwu.models.gpt import GPT, VOCABULARY, Block, GPTConfig
from luwu.models.kv_cache import KeyValueCache

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
    assert bytes(write(model, prompt, 8, Sampling(0.1)).tolist()) == b"defghijk"


def test_generation_is_repeatable_and_leaves_the_global_generator_alone():
    model = GPT(CONFIG)
    prompt = torch.tensor(list(b"ab"))
    state = torch.get_rng_state()
    first = write(model, prompt, 30, Sampling(seed=5))
    assert torch.equal(first, write(model, prompt, 30, Sampling(seed=5)))
    assert not torch.equal(first, write(model, prompt, 30, Sampling(seed=6)))
    assert first.shape == (30,)
    assert torch.equal(torch.get_rng_state(), state)


def write(model, prompt, count, sampling, cache=None):
    """Return one text, without the prompt."""
    return torch.cat(list(generate(model, prompt, count, CONFIG.seq, sampling, cache=cache)))


def sharp_model():
    """A model with large weights, whose predictions differ between contexts."""
    torch.manual_seed(3)
    model = GPT(CONFIG).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    return model


def new_cache(batch=1, dtype=torch.float32):
    return KeyValueCache(CONFIG, batch, [dtype] * CONFIG.layers, torch.device("cpu"))


def test_a_cache_changes_no_logit():
    model, cache = sharp_model(), new_cache(batch=3)
    ids = torch.randint(0, VOCABULARY, (3, 16))
    expected = model(ids).logits
    with torch.no_grad():
        for begin, end in ((0, 5), (5, 6), (6, 7), (7, 12), (12, 16)):  # a prompt, tokens, a part of several, the rest
            logits = model(ids[:, begin:end], cache=cache).logits
            assert logits.shape == (3, 1, VOCABULARY)
            torch.testing.assert_close(logits[:, 0], expected[:, end - 1])
            assert cache.tokens == end


def test_with_a_cache_the_model_sees_each_token_once_until_the_text_is_full():
    model, cache = sharp_model(), new_cache()
    seen = []

    def watched(ids, cache):
        seen.append(ids.shape[1])
        return model(ids, cache=cache)

    prompt = torch.tensor(list(b"abcde"))
    written = write(watched, prompt, 30, Sampling(0.8), cache)
    assert torch.equal(written, write(model, prompt, 30, Sampling(0.8)))
    # The text loses 8 tokens when it has 16, and again when it has 24 and 32; what is left is seen anew.
    assert seen == [5] + 10 * [1] + [8] + 7 * [1] + [8] + 7 * [1] + [8] + 2 * [1]


def test_several_texts_are_those_of_the_seeds_that_follow():
    model, prompt = sharp_model(), torch.tensor(list(b"abc"))
    together = torch.stack(list(generate(model, prompt, 25, 16, Sampling(0.8, seed=4), 3, new_cache(batch=3))), dim=1)
    assert together.shape == (3, 25)
    for index, text in enumerate(together):
        assert torch.equal(text, write(model, prompt, 25, Sampling(0.8, seed=4 + index), new_cache()))


def test_the_cache_is_of_the_dtype_that_the_model_computes_in():
    model = sharp_model().to(torch.bfloat16)
    assert len(write(model, torch.tensor([1]), 20, Sampling(), new_cache(dtype=torch.bfloat16))) == 20


def test_tokens_are_chosen_among_the_likeliest():
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]]).repeat(400, 1)
    own = [torch.Generator().manual_seed(index) for index in range(400)]
    assert choose(logits, Sampling(0.0), own).tolist() == 400 * [1]
    assert set(choose(logits, Sampling(5.0, top_k=2), own).tolist()) == {1, 2}
    assert set(choose(logits, Sampling(5.0, top_k=9), own).tolist()) == {0, 1, 2, 3}
    share = (choose(logits, Sampling(), own) == 1).float().mean().item()
    assert share == pytest.approx(torch.softmax(logits[0], 0)[1].item(), abs=0.06)


def test_the_model_is_plain_torch_and_needs_no_native_part():
    # The peers of benchmarks train it in an environment that has torch, and LuWu's sources alone.
    code = "import sys; sys.modules['luwu._native'] = None; import luwu.models.gpt"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_on_meta_is_made_without_torchs_compiler():
    code = (
        "import sys, torch; from luwu.models.gpt import GPT, GPTConfig\n"
        "with torch.device('meta'): GPT(GPTConfig(layers=1, hidden=32, heads=2, seq=4))\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
