"""Time on a GPU, by its own events, and figures that a part has so far."""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def report(found: dict[str, Any]) -> None:
    """Print the figures so far: they are what is left of a part that fails or takes too long."""
    print(json.dumps(found), flush=True)


def free_memory() -> None:
    """Give back what a model that is gone had on the GPU."""
    gc.collect()
    torch.cuda.empty_cache()


TRAINABLE_BYTES, FROZEN_BYTES = 32, 3
"""Most bytes of a parameter in a store: two versions of states and values, and what files add."""


IN_MEMORY = Path("/dev/shm")


def place_for(store_bytes: int, folder: Path) -> Path:
    """Return a folder in memory for a store of ``store_bytes``; ``folder`` where there is no room."""
    room = shutil.disk_usage(IN_MEMORY).free if IN_MEMORY.is_dir() else 0
    return IN_MEMORY if room > store_bytes else folder


def product_rate(side: int = 8192) -> float:
    """Return the FLOP/s of a product of square matrices in bfloat16."""
    left = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)
    return 2 * side**3 / gpu_seconds(lambda: left @ left, 20)


def seconds_of(step: Callable[[int], None], repeats: int) -> float:
    """Return the median of a step's seconds, after two to warm up."""
    taken = []
    for index in range(repeats + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(index)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return sorted(taken[2:])[repeats // 2]


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
