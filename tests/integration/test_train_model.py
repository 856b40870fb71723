"""`luwu train --model` as a user runs it: from the weights and the tokenizer of a folder, and again from its store."""

from __future__ import annotations

import pytest
import torch
from tests.unit.corpora import story, tokenizer_file
from transformers import AutoModelForCausalLM, LlamaConfig

from harness.training import finish, metrics, start_run
from luwu.data.corpus import Corpus
from luwu.data.sampler import Sampler
from luwu.data.tokenizer import FileTokenizer

pytestmark = pytest.mark.slow

FLAGS = ["--seq", "16", "--batch", "6", "--memory", "64MiB", "--data", "stories.txt"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text, and a model in shards with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "stories.txt").write_text("".join(map(story, range(60))))
    vocabulary = FileTokenizer(tokenizer_file(folder / "llama" / "tokenizer.json")).vocabulary
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=vocabulary + 5,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "llama", max_shard_size="20KB")
    (folder / "settings.toml").write_text("[data]\nvalidation_windows = 4\n[sample]\nlength = 4\n")
    return folder


def train(folder, *flags):
    return finish(start_run(folder, "run", *FLAGS, *flags), 200)


def test_it_goes_on_from_the_weights_and_then_from_its_store(folder):
    code, output, error = train(folder, "--model", "llama", "--steps", "2", "--workers", "1")
    assert code == 0, error
    assert "tokens of stories" in output and "nats per token" in output
    assert "learning rate up to 2e-05, for fine-tuning with adamw, as the model starts from weights; --lr" in output
    code, output, error = train(folder, "--steps", "3", "--workers", "1")
    assert code == 0, error
    assert "resuming after step 2 of 3" in output and "learning rate up to" not in output
    assert "curve now ends at step 3 instead of 2" in output
    losses = [row["loss"] for row in metrics(folder, "run")]
    corpus = Corpus.load(folder / "run")
    assert corpus is not None
    twin = AutoModelForCausalLM.from_pretrained(folder / "llama")
    inputs, targets = map(torch.from_numpy, Sampler(corpus.train, 16, 6, 0).batch_of(0, 0, 1))
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(twin(inputs).logits.flatten(0, 1), targets.flatten())
    assert losses[0] == pytest.approx(float(expected), rel=1e-5)
    assert len(losses) == 3
