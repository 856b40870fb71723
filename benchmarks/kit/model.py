"""The model and the batches that every side of a benchmark trains: luwu's own GPT, which is plain torch.

It comes from luwu's sources where luwu is not installed, as in the peers' environment, which has torch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.append(str(Path(__file__).resolve().parents[2] / "src"))

from luwu.models import gpt
from luwu.worker.vector_functions import choose_vector_functions

ADAMW: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}


class LossModel(nn.Module):
    """A GPT that returns its loss alone, or its prediction where there are no targets."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.gpt = gpt.GPT(gpt.GPTConfig(**shape))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        """Takes (rows, seq) int64 ids and targets, returns the mean cross entropy in nats."""
        prediction = self.gpt(ids, targets)
        return prediction if targets is None else prediction.loss


def build(shape: dict[str, Any], dtype: torch.dtype = torch.float32, *, checkpoint_blocks: bool = False) -> LossModel:
    """A model of `shape` (layers, hidden, heads, seq): the same bits on every side, drawn in float32.

    `checkpoint_blocks` recomputes every block in backward, as luwu does by itself.
    """
    choose_vector_functions()
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
