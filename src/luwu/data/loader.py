"""A prepared corpus for torch.utils.data.DataLoader, in the order that `luwu train` uses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from luwu.data.sampler import Order, count_windows
from luwu.data.tokenizer import Tokens


class Windows(Dataset[Tensor]):
    """The windows of a part of a corpus, each int64 [seq + 1]: `seq` inputs, and the targets one place on.

    ``window[:-1]`` are inputs and ``window[1:]`` targets; a Hugging Face model, which shifts by itself, takes the whole
    window as ``input_ids`` and as ``labels``.

    Args:
        tokens: ``corpus.train`` or ``corpus.validation``.
        seq: targets in a window.
    """

    def __init__(self, tokens: Tokens, seq: int) -> None:
        self._tokens = tokens
        self._seq = seq

    def __len__(self) -> int:
        return count_windows(self._tokens, self._seq)

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index}: expected 0 to {len(self) - 1}")
        window = self._tokens[index * self._seq : (index + 1) * self._seq + 1]
        return torch.from_numpy(window.astype(np.int64))


class BatchSampler(Sampler[list[int]]):
    """Sampler of one worker's share of each attempt's batch, without end: for DataLoader(windows, batch_sampler=...).

    Batch number ``attempt`` holds the same windows in the same order for any number of workers, and each window is used
    once an epoch. To resume, start where the session stands: ``start=session.attempts``.

    Args:
        windows: number of windows, ``len(dataset)``.
        batch: windows a step, over all workers.
        seed: seed of the order.
        rank, workers: this worker among the run's.
        start: the first attempt.

    Raises:
        DataError: there are no windows.
    """

    def __init__(
        self, windows: int, batch: int, *, seed: int = 0, rank: int = 0, workers: int = 1, start: int = 0
    ) -> None:
        self._order = Order(windows, batch, seed)
        self._rank = rank
        self._workers = workers
        self._start = start

    def __iter__(self) -> Iterator[list[int]]:
        for attempt in count(self._start):
            yield self._order.share_of(attempt, self._rank, self._workers)
