"""Time of a step against fused AdamW with all of the model on the GPU: a model of 1.2B parameters in Llama's shape.

The store lies in memory (/dev/shm), so that the bus and the server are measured and not the disk; where there is no
room the bar is not decided.
Both sides recompute each layer in backward, and take their batch in slices of the same rows; LuWu computes its loss in
tiles, because its head sees the whole batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from llama import LLAMA_1B, Llama, Shape, texts
from timing import IN_MEMORY, TRAINABLE_BYTES, place_for, product_rate, report, seconds_of

import luwu

LEAST = 0.95
MOST_WAITING = 0.05
DEVICE = "cuda"
LENGTH = 2048
SLICE_ROWS = 4
SMOKE = Shape(layers=4, hidden=1024, inner=2816, heads=8)

Step = Callable[[int, int], None]
"""Trains on a batch, given its rows and its number."""


def on_the_gpu(shape: Shape) -> Step:
    """Torch's step in bfloat16."""
    torch.manual_seed(0)
    model = Llama(shape, checkpoints=True).to(DEVICE, torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(rows: int, index: int) -> None:
        batch = texts(shape, rows, LENGTH, index, DEVICE)
        for part in batch.split(SLICE_ROWS):
            (model(part) * (len(part) / rows)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextmanager
def over_the_bus(shape: Shape, folder: Path) -> Iterator[tuple[Step, list[float]]]:
    """LuWu's step, and for each one made the seconds in which the worker waited for the fabric or for a buffer."""
    with tempfile.TemporaryDirectory(dir=folder) as run, luwu.open(run, memory="40GiB") as session:
        with torch.device("meta"):
            model = Llama(shape, loss=luwu.tiled_cross_entropy)
        luwu.parallelize(model, session, device=DEVICE, dtype=torch.bfloat16, micro_batch_size=SLICE_ROWS)
        optimizer = luwu.AdamW(model, lr=1e-4)
        waited: list[float] = []

        def step(rows: int, index: int) -> None:
            before = session.endpoint.stats()["wait_seconds"]
            model(texts(shape, rows, LENGTH, index, DEVICE)).backward()
            optimizer.step()
            waited.append(session.endpoint.stats()["wait_seconds"] - before)

        yield step, waited


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Seconds by tokens a step, ratios, the share of waiting, and FLOP/s over those of a product of matrices.

    A step has 6 FLOP a parameter and token; what is computed again in backward does not count.
    """
    shape, sizes, repeats = (SMOKE, (4,), 2) if smoke else (LLAMA_1B, (2, 8, 16, 32, 64), 3)
    place = folder if smoke else place_for(TRAINABLE_BYTES * shape.parameters, folder)
    rate = product_rate()
    found: dict[int, dict[str, float]] = {}
    figures = {"by_tokens": found, "parameters": shape.parameters, "store": str(place), "product_flop_per_second": rate}
    torch_step = on_the_gpu(shape)
    with over_the_bus(shape, place) as (luwu_step, waited):
        for rows in sizes:
            theirs = seconds_of(partial(torch_step, rows), repeats)
            ours = seconds_of(partial(luwu_step, rows), repeats)
            waiting = sorted(waited[-repeats:])[repeats // 2] / ours
            used = 6 * shape.parameters * rows * LENGTH / ours
            found[rows * LENGTH] = {
                "luwu": ours, "torch": theirs, "ratio": theirs / ours, "waiting": waiting, "utilisation": used / rate,
            }  # fmt: skip
            report(figures)
    largest = found[max(found)]
    if smoke or place != IN_MEMORY:  # the disk would be measured, and not the bus
        return {"ok": None, **figures}
    return {"ok": largest["ratio"] >= LEAST and largest["waiting"] <= MOST_WAITING, **figures}
