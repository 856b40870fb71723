"""A step against FSDP2 with values and states in the host's memory: the same model, tokens and checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from llama import LLAMA_1B, Llama, Shape, texts
from step_time import LENGTH, SLICE_ROWS, SMOKE, over_the_bus
from timing import TRAINABLE_BYTES, free_memory, place_for, report, seconds_of
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

LEAST = 1.5
DEVICE, BACKENDS = "cuda", "cpu:gloo,cuda:nccl"
OFFLOAD: OffloadPolicy = CPUOffloadPolicy()


def fsdp2(shape: Shape, rows: int, repeats: int) -> float:
    """FSDP2's step: float32 values and AdamW on the host, bfloat16 on the GPU, the batch in slices."""
    distributed.init_process_group(BACKENDS, store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh(DEVICE, (1,))
        options = {
            "mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16), "offload_policy": OFFLOAD,
        }  # fmt: skip
        torch.manual_seed(0)
        model = Llama(shape, checkpoints=True).train()
        for layer in model.layers:
            fully_shard(layer, **options)
        fully_shard(model, **options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step(index: int) -> None:
            parts = texts(shape, rows, LENGTH, index, DEVICE).split(SLICE_ROWS)
            for number, part in enumerate(parts):
                model.set_requires_gradient_sync(number == len(parts) - 1)
                (model(part) * (len(part) / rows)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return seconds_of(step, repeats)
    finally:
        distributed.destroy_process_group()


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Seconds of a step, by tokens, and FSDP2's over LuWu's."""
    shape, sizes, repeats = (SMOKE, (4,), 2) if smoke else (LLAMA_1B, (8, 32), 3)
    place = folder if smoke else place_for(TRAINABLE_BYTES * shape.parameters, folder)
    found: dict[int, dict[str, float]] = {}
    for rows in sizes:
        theirs = fsdp2(shape, rows, repeats)
        free_memory()
        ours, _ = over_the_bus(shape, rows, repeats, place)
        free_memory()
        found[rows * LENGTH] = {"luwu": ours, "fsdp2": theirs, "ratio": theirs / ours}
        report({"by_tokens": found})
    least = min(figures["ratio"] for figures in found.values())
    return {"ok": None if smoke else least >= LEAST, "by_tokens": found, "left_out": "DeepSpeed"}
