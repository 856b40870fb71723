"""The GPU's peak memory as the model grows deeper."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from llama import Llama, Shape, texts

import luwu

MOST = 0.01
ROWS, TOKENS = 4, 1024


def peak_bytes(folder: Path, layers: int) -> int:
    """Torch's peak in the third step, and the engine's buffers, less what checkpoints of the layers' inputs take."""
    shape = Shape(layers=layers, hidden=1024, inner=2816, heads=16)
    with tempfile.TemporaryDirectory(dir=folder) as run, luwu.open(run, memory="16GiB") as session:
        with torch.device("meta"):
            model = Llama(shape)
        luwu.parallelize(model, session, device="cuda", dtype=torch.bfloat16)
        optimizer = luwu.AdamW(model, lr=1e-4)
        free_before, _ = torch.cuda.mem_get_info()
        for step in range(3):
            if step == 2:
                torch.cuda.reset_peak_memory_stats()
            model(texts(shape, ROWS, TOKENS, step, "cuda")).backward()
            optimizer.step()
        free_after, _ = torch.cuda.mem_get_info()
        torch_holds = torch.cuda.memory_reserved()
        engine = max(0, free_before - free_after - torch_holds)
        peak = torch.cuda.max_memory_allocated() + engine
    torch.cuda.empty_cache()
    return peak - layers * ROWS * TOKENS * shape.hidden * 2


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Peaks by layers, and the largest over the smallest."""
    peaks = {layers: peak_bytes(folder, layers) for layers in ((4, 8) if smoke else (8, 16, 32))}
    growth = max(peaks.values()) / min(peaks.values()) - 1
    return {"ok": None if smoke else growth <= MOST, "peaks": peaks, "growth": growth}
