"""A step against FSDP2 and DeepSpeed's ZeRO-3, both with values and states in the host's memory.

All sides have the same model, tokens and checkpointing. DeepSpeed is left out where it is not installed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from llama import LLAMA_1B, Llama, Shape, texts
from step_time import LENGTH, SLICE_ROWS, SMOKE, over_the_bus
from timing import IN_MEMORY, TRAINABLE_BYTES, free_memory, place_for, report, seconds_of
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

LEAST = 1.5
DEVICE, BACKENDS = "cuda", "cpu:gloo,cuda:nccl"
OFFLOAD: OffloadPolicy = CPUOffloadPolicy()


def apart(work: Callable[..., float], *arguments: Any) -> float:
    """Call a function in a process of its own, which leaves no memory and no process group behind."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group of this process alone."""
    distributed.init_process_group(BACKENDS, store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def fsdp2(shape: Shape, rows: int, repeats: int) -> float:
    """FSDP2's step: float32 values and AdamW on the host, bfloat16 on the GPU, the batch in slices."""
    with group_of_one():
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


def zero3(shape: Shape, rows: int, repeats: int) -> float:
    """DeepSpeed's step: ZeRO-3 with its own AdamW, bfloat16 on the GPU, the batch in slices."""
    import deepspeed

    os.environ.setdefault("LOCAL_RANK", "0")  # it asks for what its launcher sets
    on_the_host = {"device": "cpu", "pin_memory": DEVICE != "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": SLICE_ROWS, "gradient_accumulation_steps": rows // SLICE_ROWS,
        "gradient_clipping": 0.0, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": on_the_host, "offload_optimizer": on_the_host},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }  # fmt: skip
    with group_of_one():
        deepspeed.init_distributed(dist_backend=BACKENDS, auto_mpi_discovery=False)
        torch.manual_seed(0)
        model = Llama(shape, checkpoints=True).to(torch.bfloat16).train()
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

        def step(index: int) -> None:
            for part in texts(shape, rows, LENGTH, index, DEVICE).split(SLICE_ROWS):
                engine.backward(engine(part))
                engine.step()  # it steps after the last slice

        return seconds_of(step, repeats)


def luwu_step(shape: Shape, rows: int, repeats: int, folder: Path) -> float:
    """LuWu's step."""
    with over_the_bus(shape, folder) as (step, _):
        return seconds_of(partial(step, rows), repeats)


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Seconds of a step of 32k tokens, and those of the faster peer over LuWu's."""
    shape, rows, repeats = (SMOKE, 4, 2) if smoke else (LLAMA_1B, 16, 3)
    place = folder if smoke else place_for(TRAINABLE_BYTES * shape.parameters, folder)
    seconds: dict[str, float] = {}
    left_out = [] if find_spec("deepspeed") else ["DeepSpeed is not installed"]
    figures = {"tokens": rows * LENGTH, "seconds": seconds, "store": str(place), "left_out": left_out}
    for name, side in (("luwu", partial(luwu_step, folder=place)), ("fsdp2", fsdp2)):
        seconds[name] = side(shape, rows, repeats)
        free_memory()
        report(figures)
    if not left_out:
        try:
            seconds["deepspeed"] = apart(zero3, shape, rows, repeats)
        except Exception as error:  # it compiles operators of its own, which a machine may not allow
            left_out.append(f"DeepSpeed: {error}")
    ratio = min(taken for name, taken in seconds.items() if name != "luwu") / seconds["luwu"]
    decided = not smoke and place == IN_MEMORY  # else the disk would be measured, and not the bus
    return {"ok": ratio >= LEAST if decided else None, "ratio": ratio, **figures}
