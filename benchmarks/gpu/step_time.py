"""Time of a step against fused AdamW with all of the model on the GPU: a model of 1.2B parameters in Llama's shape.

The store lies in memory (/dev/shm) where there is room, so that the bus and the server are measured and not the disk.
Both sides recompute each layer in backward, and take their batch in slices of the same rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from llama import LLAMA_1B, Llama, Shape, texts

import luwu

LEAST = 0.95
MOST_WAITING = 0.05
LENGTH = 2048
SLICE_ROWS = 4
SMOKE = Shape(layers=4, hidden=1024, inner=2816, heads=8)


def seconds_of(step: Callable[[int], None], repeats: int) -> float:
    """The median of a step's seconds, after two to warm up."""
    taken = []
    for index in range(repeats + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(index)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return sorted(taken[2:])[repeats // 2]


def on_the_gpu(shape: Shape, rows: int, repeats: int) -> float:
    """Torch's step in bfloat16, whose memory is free again afterwards."""
    taken = _on_the_gpu(shape, rows, repeats)
    torch.cuda.empty_cache()
    return taken


def _on_the_gpu(shape: Shape, rows: int, repeats: int) -> float:
    torch.manual_seed(0)
    model = Llama(shape, checkpoints=True).to("cuda", torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(index: int) -> None:
        batch = texts(shape, rows, LENGTH, index, "cuda")
        for part in batch.split(SLICE_ROWS):
            (model(part) * (len(part) / rows)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return seconds_of(step, repeats)


def over_the_bus(shape: Shape, rows: int, repeats: int, folder: Path) -> tuple[float, float]:
    """LuWu's step, and the share of it in which the worker waited for the fabric or for a buffer."""
    with tempfile.TemporaryDirectory(dir=folder) as run, luwu.open(run, memory="40GiB") as session:
        with torch.device("meta"):
            model = Llama(shape)
        luwu.parallelize(model, session, device="cuda", dtype=torch.bfloat16, micro_batch_size=SLICE_ROWS)
        optimizer = luwu.AdamW(model, lr=1e-4)
        waited = []

        def step(index: int) -> None:
            before = session.endpoint.stats()["wait_seconds"]
            model(texts(shape, rows, LENGTH, index, "cuda")).backward()
            optimizer.step()
            waited.append(session.endpoint.stats()["wait_seconds"] - before)

        taken = seconds_of(step, repeats)
        return taken, sorted(waited[2:])[repeats // 2] / taken


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Seconds by tokens a step, ratios, MFU (6 FLOP a parameter and token), and the share of waiting."""
    shape, sizes, repeats = (SMOKE, (4,), 2) if smoke else (LLAMA_1B, (2, 8, 16, 32, 64), 3)
    shared = Path("/dev/shm")
    place = shared if shared.is_dir() and not smoke else folder
    rows_found = {}
    for rows in sizes:
        theirs = on_the_gpu(shape, rows, repeats)
        ours, waiting = over_the_bus(shape, rows, repeats, place)
        flop = 6 * shape.parameters * rows * LENGTH
        rows_found[rows * LENGTH] = {
            "luwu": ours, "torch": theirs, "ratio": theirs / ours, "waiting": waiting, "flop_per_second": flop / ours,
        }  # fmt: skip
    largest = rows_found[max(rows_found)]
    ok = None if smoke else largest["ratio"] >= LEAST and largest["waiting"] <= MOST_WAITING
    return {"ok": ok, "by_tokens": rows_found, "parameters": shape.parameters}
