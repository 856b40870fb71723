"""The GPU's peak memory as the model grows deeper."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from llama import Llama, Shape, texts
from timing import free_memory, report

import luwu
from luwu.worker.parallelize import runtime_of

MOST = 0.01
DEVICE = "cuda"
ROWS, TOKENS = 4, 1024


def shape_of(layers: int) -> Shape:
    """A model of layers with 13M parameters each."""
    return Shape(layers=layers, hidden=1024, inner=2816, heads=16)


def peak_bytes(folder: Path, layers: int) -> int:
    """Torch's peak in the third step, and the engine's buffers, less what checkpoints of the layers' inputs take."""
    shape = shape_of(layers)
    with tempfile.TemporaryDirectory(dir=folder) as run, luwu.open(run, memory="16GiB") as session:
        with torch.device("meta"):
            model = Llama(shape)
        luwu.parallelize(model, session, device=DEVICE, dtype=torch.bfloat16)
        optimizer = luwu.AdamW(model, lr=1e-4)
        for step in range(3):
            if step == 2:
                torch.cuda.reset_peak_memory_stats()
            model(texts(shape, ROWS, TOKENS, step, DEVICE)).backward()
            optimizer.step()
        peak = torch.cuda.max_memory_allocated() + runtime_of(model).device_bytes
        return peak - layers * ROWS * TOKENS * shape.hidden * 2


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Peaks by layers, and the largest over the smallest."""
    peaks: dict[int, int] = {}
    for layers in (4, 8) if smoke else (8, 16, 32):
        peaks[layers] = peak_bytes(folder, layers)
        free_memory()
        report({"peaks": peaks})
    growth = max(peaks.values()) / min(peaks.values()) - 1
    return {"ok": None if smoke else growth <= MOST, "peaks": peaks, "growth": growth}
