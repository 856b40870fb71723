"""Small models of transformers in folders, as ``save_pretrained`` leaves them, for tests of import and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


def config_of(family: str) -> Any:
    """A configuration small enough for tests; GPT-2 has tied embeddings."""
    import transformers

    if family == "gpt2":
        return transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=65, n_positions=32, bos_token_id=0, eos_token_id=0,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
    small = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 65, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    if family == "llama":
        return transformers.LlamaConfig(**small)
    if family == "mixtral":
        return transformers.MixtralConfig(**small, num_local_experts=3)
    assert family == "resnet"
    return transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic")


def build(family: str, seed: int = 0) -> Any:
    """The model with random values, also in the statistics of its batch norms."""
    import transformers

    torch.manual_seed(seed)
    model = auto_class(family).from_config(config_of(family))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    assert isinstance(model, transformers.PreTrainedModel)
    return model


def auto_class(family: str) -> Any:
    """Return the class that loads a model of this family."""
    import transformers

    return transformers.AutoModelForImageClassification if family == "resnet" else transformers.AutoModelForCausalLM


def save(family: str, folder: Path, *, shard_size: str = "5GB", seed: int = 0) -> Any:
    """Save the model in a folder and return it."""
    model = build(family, seed)
    model.save_pretrained(folder, max_shard_size=shard_size)
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    return model
