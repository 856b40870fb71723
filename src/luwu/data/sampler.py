"""The sequences that a step trains on: a pure function of the seed, the attempt and the settings.

Nothing is kept between steps, so a resumed run goes on with the very samples the undisturbed run would have seen.
An attempt is a step that was tried, committed or rolled back: a step that was rolled back is tried again on new data.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from luwu.core.errors import DataError
from luwu.core.shares import even_share
from luwu.data.tokenizer import Tokens

Batch = np.ndarray[Any, np.dtype[np.int64]]

FEISTEL_ROUNDS = 4


class Permutation:
    """A keyed order of 0..size-1 that is computed place by place and never stored.

    A four-round Feistel network (Luby and Rackoff, 1988) permutes the numbers of an even count of bits; a result
    outside the range is sent through again until it falls inside (cycle walking: Black and Rogaway, 2002).
    """

    def __init__(self, size: int, key: bytes) -> None:
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys = [key + bytes([round_]) for round_ in range(FEISTEL_ROUNDS)]

    def __getitem__(self, place: int) -> int:
        """Return the number at one place of the order."""
        if not 0 <= place < self.size:
            raise IndexError(f"place {place}: expected 0 to {self.size - 1}")
        number = self._scramble(place)
        while number >= self.size:
            number = self._scramble(number)
        return number

    def _scramble(self, number: int) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = number >> self._half_bits, number & mask
        for key in self._keys:
            digest = hashlib.blake2b(right.to_bytes(8, "little"), key=key, digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
        return left << self._half_bits | right


class Order:
    """Deals `windows` windows out in batches of `batch`: each once an epoch, every epoch in an order of its own.

    Epochs follow one another without a gap: a batch that an epoch cannot fill takes the first windows of the next, so
    that every batch is whole and no window is left out.
    """

    def __init__(self, windows: int, batch: int, seed: int) -> None:
        if windows < 1:
            raise DataError("data: expected text for at least one sequence, found less; use more or shorter sequences")
        self.windows = windows
        self.batch = batch
        self.seed = seed

    def indices(self, attempt: int) -> list[int]:
        """Return the windows of one attempt's whole batch, the same for any number of workers."""
        return self.share_of(attempt, 0, 1)

    def share_of(self, attempt: int, rank: int, workers: int) -> list[int]:
        """Return one worker's windows: the shares of all workers, in the order of ranks, are the whole batch."""
        return self.windows_of(attempt, even_share(self.batch, rank, workers))

    def windows_of(self, attempt: int, rows: slice) -> list[int]:
        """Return the windows of some rows of one attempt's batch."""
        first = attempt * self.batch
        return [self._index(first + place) for place in range(self.batch)[rows]]

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, self.windows)
        return Permutation(self.windows, mixed(self.seed, epoch))[place]


class Sampler(Order):
    """Cuts text into windows of `seq` tokens, and gives out their tokens.

    `text` is uint8, uint16 or uint32; `batch` windows make one step over all workers. The tokens after the last whole
    window, fewer than `seq`, are not used.
    """

    def __init__(self, text: Tokens, seq: int, batch: int, seed: int) -> None:
        super().__init__(count_windows(text, seq), batch, seed)
        self.text = text
        self.seq = seq

    def batch_of(self, attempt: int, rank: int, workers: int) -> tuple[Batch, Batch]:
        """Return one worker's share of an attempt: inputs and targets, int64 [share, seq]."""
        return self.rows_of(attempt, even_share(self.batch, rank, workers))

    def rows_of(self, attempt: int, rows: slice) -> tuple[Batch, Batch]:
        """Return some rows of an attempt's batch: inputs and targets, int64 [rows, seq]."""
        return cut(self.text, self.windows_of(attempt, rows), self.seq)


def count_windows(text: Tokens, seq: int) -> int:
    """Windows of `seq` tokens, each followed by one more that is its last target."""
    return max(0, len(text) - 1) // seq


def cut(text: Tokens, windows: list[int], seq: int) -> tuple[Batch, Batch]:
    """The given windows of a text: inputs and the token that follows each, int64 [windows, seq]."""
    both = np.stack([text[window * seq : window * seq + seq + 1] for window in windows]).astype(np.int64)
    return both[:, :-1], both[:, 1:]


def mixed(*numbers: int) -> bytes:
    """Sixteen bytes that depend on every one of the numbers."""
    joined = b"".join(number.to_bytes(8, "little") for number in numbers)
    return hashlib.blake2b(joined, digest_size=16).digest()
