"""Even division of things among workers: consecutive parts whose sizes differ by one at most."""

from __future__ import annotations

from collections.abc import Sequence


def even_share(count: int, rank: int, workers: int) -> slice:
    """Return one worker's part of ``count`` things."""
    return slice(count * rank // workers, count * (rank + 1) // workers)


def even_counts(count: int, workers: int) -> list[int]:
    """Return the sizes of all workers' parts, by rank."""
    parts = [even_share(count, rank, workers) for rank in range(workers)]
    return [part.stop - part.start for part in parts]


def is_even(counts: Sequence[int]) -> bool:
    """Return True where these are the sizes of an even division."""
    return list(counts) == even_counts(sum(counts), len(counts))
