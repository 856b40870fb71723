"""The model of `lora`: a small Llama with adapters of peft on its attention, the same bits on every side."""

from __future__ import annotations

import os
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, logging

ADAMW = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
VOCABULARY, ROWS, LENGTH = 512, 4, 32


def build(settings: dict[str, Any]) -> nn.Module:
    """The model of `settings` (hidden, layers, dtype), its base frozen, base and adapters in one dtype."""
    logging.set_verbosity_error()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(20)
    hidden = settings["hidden"]
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=settings["layers"], num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    base = AutoModelForCausalLM.from_config(config).to(getattr(torch, settings["dtype"]))
    adapters = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    return get_peft_model(base, adapters, autocast_adapter_dtype=False).train()


def loss_of(model: nn.Module, step: int) -> Tensor:
    """The loss of a step's batch: sequences that count upwards by a stride of their own."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(VOCABULARY, (ROWS, 1), generator=generator)
    stride = torch.randint(1, 4, (ROWS, 1), generator=generator)
    ids = (start + stride * torch.arange(LENGTH)) % VOCABULARY
    loss: Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def counts(model: nn.Module) -> dict[str, int]:
    """Return the number of frozen parameters, and that of the adapters'."""
    found = {True: 0, False: 0}
    for parameter in model.parameters():
        found[parameter.requires_grad] += parameter.numel()
    return {"frozen": found[False], "adapters": found[True]}
