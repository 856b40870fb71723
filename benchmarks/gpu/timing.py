"""Time on a GPU, by its own events."""

from __future__ import annotations

from collections.abc import Callable

import torch


def gpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """Seconds of one call on the current stream: the median of ``repeats``, after one to warm up."""
    work()
    torch.cuda.synchronize()
    taken = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1000)
    return sorted(taken)[len(taken) // 2]
