"""The models of `parity_models`: the families that the tests have, wider, some of them with frozen parts.

A variant is a family's name, and perhaps "frozen": then its embeddings (or stem) and its first layer are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import logging

from harness.model_families import CAUSAL, batch, make

FROZEN = ("embed", "wte", "wpe", "shared", "bn1", "conv1.", ".0.")
WIDTH = 64
ROWS = 8
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


def build(variant: str) -> nn.Module:
    """The same bits on every side."""
    logging.set_verbosity_error()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(20)
    family, _, frozen = variant.partition(" ")
    model = make(family, WIDTH).train()
    if frozen:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(part in name for part in FROZEN))
    return model


def is_causal(variant: str) -> bool:
    """Return True for a causal language model."""
    return variant.partition(" ")[0] in CAUSAL


def losses(
    model: nn.Module, variant: str, optimizer: torch.optim.Optimizer, steps: Iterable[int], rank: int = 0,
    workers: int = 1, before_step: Callable[[], Any] = lambda: None,
) -> list[float]:  # fmt: skip
    """Train on this rank's rows of every batch and return the loss of each step."""
    found = []
    for step in steps:
        loss: Tensor = model(**_rows(variant, step, rank, workers)).loss
        loss.backward()
        before_step()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def _rows(variant: str, step: int, rank: int, workers: int) -> dict[str, Tensor]:
    whole = batch(variant.partition(" ")[0], step, ROWS)
    size = ROWS // workers
    return {name: value[rank * size : (rank + 1) * size] for name, value in whole.items()}
