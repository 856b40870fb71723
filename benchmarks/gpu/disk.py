"""Training with states on disk, a quarter of them in memory, against what the disk allows."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from llama import LLAMA_1B, Llama, Shape, texts
from timing import seconds_of

import luwu
from luwu.core.manifest import DEFAULT_CHUNK_ELEMENTS
from luwu.probe.rates import measure_disk

LEAST = 0.9
DEVICE = "cuda"
ROWS, LENGTH = 8, 2048
STATE_BYTES, VALUE_BYTES = 12, 2
"""Bytes of a parameter: its states with AdamW, and its value in bfloat16."""
READ_BYTES, WRITTEN_BYTES = 9, 14
"""Bytes of a parameter that a step reads, three quarters of its states, and writes: all states and the value."""

FULL = replace(LLAMA_1B, layers=8)
"""0.5B parameters: a store of 1.2B takes minutes to make on an ordinary disk."""
SMOKE = Shape(layers=8, hidden=1024, inner=2816, heads=8)


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Seconds of a step, bytes that it read and wrote, and the seconds that the disk needs for them."""
    shape, repeats = (SMOKE, 2) if smoke else (FULL, 3)
    with tempfile.TemporaryDirectory(dir=folder) as run, luwu.open(run, memory=memory_for(shape)) as session:
        assert session.server is not None
        with torch.device("meta"):
            model = Llama(shape, loss=luwu.tiled_cross_entropy)
        luwu.parallelize(model, session, device=DEVICE, dtype=torch.bfloat16, micro_batch_size=2)
        optimizer = luwu.AdamW(model, lr=1e-4)
        moved = []

        def step(index: int) -> None:
            before = bytes_of(session.server.stats())
            model(texts(shape, ROWS, LENGTH, index, DEVICE)).backward()
            optimizer.step()
            moved.append(bytes_of(session.server.stats()) - before)

        seconds = seconds_of(step, repeats)
        bytes_moved = sorted(moved[2:])[repeats // 2]
        rates = measure_disk(
            folder,
            read_bytes=READ_BYTES * DEFAULT_CHUNK_ELEMENTS,
            write_bytes=WRITTEN_BYTES * DEFAULT_CHUNK_ELEMENTS,
            seconds=1 if smoke else 10,
        )
    share = bytes_moved / rates.mixed_rate / seconds
    return {
        "ok": None if smoke else share >= LEAST, "share_of_the_disks_limit": share, "seconds": seconds,
        "bytes": bytes_moved, "disk_bytes_per_second": rates.mixed_rate, "direct": rates.direct,
    }  # fmt: skip


def memory_for(shape: Shape) -> int:
    """Return the server's budget: all values, two of the largest gradient, and a quarter of the states."""
    largest = max(shape.block_parameters, shape.vocabulary * shape.hidden)
    return VALUE_BYTES * (shape.parameters + 2 * largest) + STATE_BYTES * shape.parameters // 4


def bytes_of(stats: dict[str, Any]) -> int:
    """Read and written so far."""
    return int(stats["bytes_read"] + stats["bytes_written"])
