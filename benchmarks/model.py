"""The model and the batches that every side of a benchmark trains: luwu's own GPT, which is plain torch.

It is loaded from its file, because the peers' environment has torch but not luwu.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ADAMW = {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
GPT_FILE = Path(__file__).resolve().parent.parent / "src" / "luwu" / "models" / "gpt.py"


def _load_gpt() -> ModuleType:
    spec = importlib.util.spec_from_file_location("luwu_gpt", GPT_FILE)
    if spec is None or spec.loader is None:
        raise ImportError(f"{GPT_FILE} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


gpt = _load_gpt()


class LossModel(nn.Module):
    """A GPT that returns its loss alone."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.gpt = gpt.GPT(gpt.GPTConfig(**shape))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Takes (rows, seq) int64 ids and targets, returns the mean cross entropy in nats."""
        return self.gpt(ids, targets).loss


def build(shape: dict[str, Any], dtype: torch.dtype = torch.float32, *, checkpoint_blocks: bool = False) -> LossModel:
    """A model of `shape` (layers, hidden, heads, seq): the same bits on every side, drawn in float32.

    `checkpoint_blocks` recomputes every block in backward, as luwu does by itself.
    """
    torch.manual_seed(20)
    model = LossModel(shape).to(dtype)
    if checkpoint_blocks:
        for block in model.gpt.blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return model


def batches(rows: int, seq: int, rank: int = 0, world: int = 1, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (ids, targets), each (rows, seq), from step `first`: this rank's rows of a global batch of rows * world.

    Ids count upwards by a stride that changes with the row, so that there is something to learn; the global batch
    is the same for every `world` of the same rows * world.
    """
    step = first
    while True:
        generator = torch.Generator().manual_seed(step)
        start = torch.randint(gpt.VOCABULARY, (rows * world, 1), generator=generator)
        stride = torch.randint(1, 4, (rows * world, 1), generator=generator)
        text = (start + stride * torch.arange(seq + 1)) % gpt.VOCABULARY
        mine = text[rank * rows : (rank + 1) * rows]
        yield mine[:, :-1].contiguous(), mine[:, 1:].contiguous()
        step += 1
