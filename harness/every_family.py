"""Every causal language model of the installed transformers, made small by one table of sizes."""

from __future__ import annotations

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 67
LENGTH = 16
MOST_PARAMETERS = 5_000_000
"""Bound of a family's parameters; one that is larger has sizes that the table does not name."""

_WIDTHS = dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "word_embed_proj_dim"), 32)
_INNER = {
    "intermediate_size": 48, "d_ff": 48, "ffn_dim": 64, "n_inner": 64, "decoder_ffn_dim": 64, "encoder_ffn_dim": 64,
    "moe_intermediate_size": 16, "shared_intermediate_size": 16,
}  # fmt: skip
_LAYERS = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2
)
_HEADS = dict.fromkeys(
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "encoder_attention_heads"), 4
)
_HEAD_PARTS = {"num_key_value_heads": 2, "head_dim": 8, "rotary_dim": 4, "sliding_window": 8}
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
_RECURRENT = {"state_size": 4, "time_step_rank": 4}
_POSITIONS = dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 2 * LENGTH)
_NO_DROPOUT = dict.fromkeys(
    (
        "hidden_dropout", "attention_dropout", "dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop",
        "activation_dropout", "layerdrop", "hidden_dropout_prob", "attention_probs_dropout_prob", "resid_dropout",
        "embd_dropout", "emb_dropout", "embedding_dropout",
    ),
    0.0,
)  # fmt: skip
SIZES = {
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "is_decoder": True,
    **_WIDTHS, **_INNER, **_LAYERS, **_HEADS, **_HEAD_PARTS, **_EXPERTS, **_RECURRENT, **_POSITIONS, **_NO_DROPOUT,
}  # fmt: skip
"""Settings of a small model; each family takes those that it knows."""


def families() -> list[str]:
    """Return the model types that have a causal language model, in alphabetical order."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def make_small(family: str, seed: int) -> nn.Module:
    """Return a small model of the family that has run forward and backward once, with values drawn by the seed.

    Raises:
        Exception: the family has constraints that the table of sizes does not meet; transformers says which.
    """
    kind = CONFIG_MAPPING[family]
    known = kind()
    config = kind(**{name: value for name, value in SIZES.items() if hasattr(known, name)})
    with torch.device("meta"):
        parameters = sum(each.numel() for each in _build(config).parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters, as the table lacks a name of its sizes")
    torch.manual_seed(seed)
    model = _build(config).train()
    model(**batch(0)).loss.backward()
    model.zero_grad()
    return model


def batch(step: int, rows: int = 4) -> dict[str, torch.Tensor]:
    """Return the arguments of a causal model's forward; every row counts in strides of its own."""
    stride = 1 + (torch.arange(rows)[:, None] + step) % 3
    ids = 3 + (7 * step + stride * torch.arange(LENGTH)) % (VOCABULARY - 3)
    return {"input_ids": ids, "labels": ids}


def _build(config: PretrainedConfig) -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model
