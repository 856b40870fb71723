"""Adapters of a model of 8B parameters, streamed from the server, against the frozen model held whole on the GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from llama import LLAMA_8B, Llama, Loss, Shape, adapt, texts, whole_loss
from timing import FROZEN_BYTES, free_memory, place_for, report, seconds_of

import luwu

LEAST = 0.9
DEVICE = "cuda"
ROWS, LENGTH, SLICE_ROWS = 8, 2048, 2
SMOKE = Shape(layers=4, hidden=1024, inner=2816, heads=8)


def model_of(shape: Shape, device: str, loss: Loss = whole_loss, *, checkpoints: bool = False) -> Llama:
    """A frozen model in bfloat16 with adapters, made on the device."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return adapt(Llama(shape, checkpoints=checkpoints, loss=loss))
    finally:
        torch.set_default_dtype(default)


def held_whole(shape: Shape, repeats: int) -> float:
    """Torch's step."""
    model = model_of(shape, DEVICE, checkpoints=True).train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-4, fused=True)

    def step(index: int) -> None:
        for part in texts(shape, ROWS, LENGTH, index, DEVICE).split(SLICE_ROWS):
            (model(part) * (len(part) / ROWS)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return seconds_of(step, repeats)


def streamed(shape: Shape, repeats: int, run: Path, device_memory: str | None) -> float:
    """LuWu's step, from the store of a run, which is made where there is none."""
    with luwu.open(run, memory="40GiB") as session:
        model = model_of(shape, "meta", luwu.tiled_cross_entropy)
        luwu.parallelize(
            model,
            session,
            device=DEVICE,
            dtype=torch.bfloat16,
            micro_batch_size=SLICE_ROWS,
            device_memory=device_memory,
        )
        optimizer = luwu.AdamW(model, lr=1e-4)

        def step(index: int) -> None:
            model(texts(shape, ROWS, LENGTH, index, DEVICE)).backward()
            optimizer.step()

        return seconds_of(step, repeats)


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Seconds of a step of 16k tokens, with no block that stays on the GPU and with 4 GiB of them."""
    shape, repeats = (SMOKE, 2) if smoke else (LLAMA_8B, 3)
    place = folder if smoke else place_for(FROZEN_BYTES * shape.parameters, folder)
    seconds = {"torch": held_whole(shape, repeats)}
    free_memory()
    figures = {"seconds": seconds, "parameters": shape.parameters, "store": str(place)}
    with tempfile.TemporaryDirectory(dir=place) as folder_of_run:
        for name, device_memory in (("streamed", None), ("4 GiB stay", "4GiB")):
            seconds[name] = streamed(shape, repeats, Path(folder_of_run) / "run", device_memory)
            free_memory()
            report(figures)
    ratio = seconds["torch"] / seconds["streamed"]
    return {"ok": None if smoke else ratio >= LEAST, "ratio": ratio, **figures}
