"""Common parts of the torch peers: joining a gloo group without a port, the trained model, a timed step."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from kit.model import ADAMW, LossModel, batches, build
from torch import distributed, nn


def join() -> tuple[int, int]:
    """Joins this process's group through a file; returns (rank, world size)."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rendezvous = f"file://{os.environ['LUWU_RENDEZVOUS']}"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
    return rank, world


def make_model(settings: dict[str, Any]) -> LossModel:
    """The float32 model of `settings` (shape, checkpoint)."""
    return build(settings["shape"], checkpoint_blocks=settings.get("checkpoint", True))


def make_optimizer(model: nn.Module, *, fused: bool = True) -> torch.optim.AdamW:
    """AdamW with every side's hyper-parameters; fused is torch's fastest on a CPU."""
    return torch.optim.AdamW(model.parameters(), **ADAMW, fused=fused)


class Trainer:
    """Trains a wrapped model on this rank's rows of every batch."""

    def __init__(
        self, model: nn.Module, settings: dict[str, Any], rank: int, world: int, *, fused: bool = True
    ) -> None:
        self._model = model
        self._optimizer = make_optimizer(model, fused=fused)
        self._rows, self._seq = settings["rows"], settings["shape"]["seq"]
        self._batches = batches(self._rows, self._seq, rank, world)

    def step(self) -> float:
        """Make an optimizer step; return this rank's loss."""
        tokens, targets = next(self._batches)
        loss = self._model(tokens, targets)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def timed(self, steps: int) -> dict[str, Any]:
        """Runs `steps` steps: tokens per second of this rank alone, seconds per step, losses."""
        started = time.perf_counter()
        losses = [self.step() for _ in range(steps)]
        seconds = time.perf_counter() - started
        tokens = self._rows * self._seq * steps
        return {"seconds": seconds / steps, "tokens_per_second": tokens / seconds, "losses": losses}
