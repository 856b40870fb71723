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
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

VOCABULARY = 67
LENGTH = 16
CLASSES = 5
SMALL = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = SMALL | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BERT = SMALL | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

CAUSAL: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt2": lambda: GPT2Config(
        **SMALL, n_embd=32, n_layer=3, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    ),
    "opt": lambda: OPTConfig(
        **SMALL,
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        word_embed_proj_dim=32,
        dropout=0.0,
    ),
    "llama": lambda: LlamaConfig(**LLAMA),
    "llama_tied": lambda: LlamaConfig(**LLAMA, tie_word_embeddings=True, attn_implementation="eager"),
    "qwen2": lambda: Qwen2Config(**LLAMA, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**LLAMA, head_dim=8),
    "mixtral": lambda: MixtralConfig(
        **LLAMA, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1
    ),
}

OTHERS: dict[str, Callable[[], nn.Module]] = {
    "bert_mlm": lambda: BertForMaskedLM(BertConfig(**BERT)),
    "bert_classifier": lambda: BertForSequenceClassification(BertConfig(**BERT, num_labels=CLASSES)),
    "vit": lambda: ViTForImageClassification(
        ViTConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16,
            patch_size=4, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    ),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    ),
    "cnn": lambda: ResNet(),
}  # fmt: skip

FAMILIES = [*CAUSAL, *OTHERS]


def make(family: str) -> nn.Module:
    """A model, initialised as its library does where it is not on meta."""
    return AutoModelForCausalLM.from_config(CAUSAL[family]()) if family in CAUSAL else OTHERS[family]()


def on_meta(family: str) -> nn.Module:
    with torch.device("meta"):
        return make(family)


def batch(family: str, step: int, rows: int = 4) -> dict[str, Any]:
    """What the family's forward takes, labels included."""
    generator = torch.Generator().manual_seed(step)
    if family in ("vit", "cnn"):
        images = torch.randn(rows, 3, 16, 16, generator=generator)
        return {"pixel_values": images, "labels": torch.randint(CLASSES, (rows,), generator=generator)}
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0  # as a padded row has it
    labels = torch.randint(CLASSES, (rows,), generator=generator) if family == "bert_classifier" else ids.clone()
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
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class Result:
    """A loss in a plain object, which pytree does not look into."""

    def __init__(self, loss: Tensor, logits: Tensor) -> None:
        self.loss, self.logits = loss, logits


class ResNet(nn.Module):
    """As torchvision's are built: a stem, stages of residual blocks in Sequentials, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Residual(8, 8), Residual(8, 8))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Result:
        x = torch.relu(self.bn1(self.conv1(pixel_values)))
        x = self.layer2(self.layer1(x))
        logits = self.fc(x.mean((2, 3)))
        return Result(nn.functional.cross_entropy(logits, labels), logits)
