"""Small models of the families that people train, built from their configurations, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    RecurrentGemmaConfig,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

VOCABULARY = 67
LENGTH = 16
CLASSES = 5
HEADS = 4
SMALL = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _llama(width: int) -> dict[str, Any]:
    return SMALL | {
        "hidden_size": width,
        "intermediate_size": 3 * width // 2,
        "num_hidden_layers": 3,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
    }


def _encoder(width: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": 3 * width // 2,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


CAUSAL: dict[str, Callable[[int], PretrainedConfig]] = {
    "gpt2": lambda width: GPT2Config(
        **SMALL, n_embd=width, n_layer=3, n_head=HEADS, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    ),
    "opt": lambda width: OPTConfig(
        **SMALL, hidden_size=width, ffn_dim=2 * width, num_hidden_layers=3, num_attention_heads=HEADS,
        word_embed_proj_dim=width, dropout=0.0,
    ),
    "llama": lambda width: LlamaConfig(**_llama(width)),
    "llama_tied": lambda width: LlamaConfig(**_llama(width), tie_word_embeddings=True, attn_implementation="eager"),
    "qwen2": lambda width: Qwen2Config(**_llama(width), tie_word_embeddings=True),
    "qwen3": lambda width: Qwen3Config(**_llama(width), head_dim=width // HEADS),
    "mixtral": lambda width: MixtralConfig(
        **_llama(width), num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1
    ),
    "recurrent_gemma": lambda width: RecurrentGemmaConfig(
        **SMALL, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=3, num_attention_heads=HEADS,
        num_key_value_heads=1, attention_window_size=8,
    ),
}  # fmt: skip

OTHERS: dict[str, Callable[[int], nn.Module]] = {
    "bert_mlm": lambda width: BertForMaskedLM(BertConfig(**SMALL, **_encoder(width))),
    "bert_classifier": lambda width: BertForSequenceClassification(
        BertConfig(**SMALL, **_encoder(width), num_labels=CLASSES)
    ),
    "vit": lambda width: ViTForImageClassification(
        ViTConfig(**_encoder(width), image_size=16, patch_size=4, num_labels=CLASSES)
    ),
    "t5": lambda width: T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=width, d_kv=width // HEADS, d_ff=3 * width // 2, num_layers=2,
            num_heads=HEADS, dropout_rate=0.0, decoder_start_token_id=0,
        )
    ),
    "cnn": lambda width: ResNet(width // 4),
}  # fmt: skip

FAMILIES = [*CAUSAL, *OTHERS]


def make(family: str, width: int = 32) -> nn.Module:
    """A model, initialised as its library does where it is not on meta."""
    return AutoModelForCausalLM.from_config(CAUSAL[family](width)) if family in CAUSAL else OTHERS[family](width)


def on_meta(family: str) -> nn.Module:
    """Return a family's model on meta."""
    with torch.device("meta"):
        return make(family)


def batch(family: str, step: int, rows: int = 4) -> dict[str, Any]:
    """Return arguments of the family's forward, labels included; there is something to learn in it."""
    generator = torch.Generator().manual_seed(step)
    if family in ("vit", "cnn"):
        labels = torch.randint(CLASSES, (rows,), generator=generator)
        images = torch.randn(rows, 3, 16, 16, generator=generator)
        images[torch.arange(rows), :, labels] += 2.0  # a bright line, in another place for each class
        return {"pixel_values": images, "labels": labels}
    start = torch.randint(VOCABULARY, (rows, 1), generator=generator)
    stride = torch.randint(1, 4, (rows, 1), generator=generator)
    ids = 3 + (start + stride * torch.arange(LENGTH)) % (VOCABULARY - 3)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0  # as a padded row has it
    labels = stride.flatten() if family == "bert_classifier" else ids.clone()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def loss_of(family: str) -> Callable[[nn.Module, int], Tensor]:
    """The loss of a step's batch."""

    def loss(model: nn.Module, step: int) -> Tensor:
        return model(**batch(family, step)).loss

    return loss


class Residual(nn.Module):
    """Two convolutions with batch norms, and the shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the two convolutions and the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class Result:
    """A loss in a plain object, which pytree does not look into."""

    def __init__(self, loss: Tensor, logits: Tensor) -> None:
        self.loss, self.logits = loss, logits


class ResNet(nn.Module):
    """Built as torchvision's are: a stem, stages of residual blocks in Sequentials, a linear head."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(Residual(width, width), Residual(width, width))
        self.layer2 = nn.Sequential(Residual(width, 2 * width, 2), Residual(2 * width, 2 * width))
        self.fc = nn.Linear(2 * width, CLASSES)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Result:
        """Return the loss and the logits."""
        x = torch.relu(self.bn1(self.conv1(pixel_values)))
        x = self.layer2(self.layer1(x))
        logits = self.fc(x.mean((2, 3)))
        return Result(nn.functional.cross_entropy(logits, labels), logits)
