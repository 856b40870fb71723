"""Several backward passes in one step: the worker sums gradients up, because the server takes a block once a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from luwu.worker.parallelize import runtime_of


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Context manager: a backward inside pushes nothing; its gradients are added up (as in DistributedDataParallel).

    The next backward outside pushes the sums along with its own gradients; where there is none, ``optim.step()`` does,
    so the whole of a training loop may run within, at the price that no update overlaps a backward. One attempt at a
    step spans all passes: hyper-parameters are read at its first forward, ``optim.zero_grad()`` drops all of it, and
    the workers of a run make equally many. Sums are float32, in the order of the passes.

    The sums take 4 bytes of host memory for every trainable parameter, and every pass pulls all parameters again: for a
    larger batch ``parallelize(micro_batch_size=...)`` does neither.

    Raises:
        ConfigError: the model is not parallelized.
        MemoryBudgetError: the sums do not fit the memory that is free.
    """
    with runtime_of(model).accumulating():
        yield
