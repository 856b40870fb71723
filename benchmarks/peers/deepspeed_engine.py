"""DeepSpeed 0.19 ZeRO-3 on one CPU process with its optimizer states on disk, in the settings that suit it best.

What the settings get round, all of DeepSpeed's own making: gradients are clipped at 1.0 unless told otherwise;
pipelined swapping needs 12 buffers and more where the default is 4 (4 tensors for each of read, update, write);
a launcher or mpi4py is asked for unless the process group exists already.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import deepspeed
import torch
from kit.model import ADAMW, LossModel, batches, build

DISK_DEFAULTS = {
    "block_size": 1 << 20,
    "queue_depth": 16,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}


def config(settings: dict[str, Any], swap_folder: str) -> dict[str, Any]:
    """DeepSpeed's configuration for `settings`: rows, dtype, offload ("nvme", "cpu" or "none") and its tuning."""
    offload = settings.get("offload", "nvme")
    zero: dict[str, Any] = {"stage": 3, "sub_group_size": settings.get("sub_group_elements", 1 << 23)}
    if offload != "none":
        zero["offload_optimizer"] = {"device": offload, "pin_memory": False}
    if offload == "nvme":
        zero["offload_optimizer"].update(
            nvme_path=swap_folder,
            pipeline_read=settings.get("pipeline_read", True),
            pipeline_write=settings.get("pipeline_write", True),
            buffer_count=settings.get("buffer_count", 12),
            fast_init=settings.get("fast_init", False),
        )
    return {
        "train_micro_batch_size_per_gpu": settings["rows"],
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": dtype_of(settings) == torch.bfloat16},
        "zero_optimization": zero,
        "aio": {**DISK_DEFAULTS, **settings.get("aio", {})},
        "optimizer": {"type": "AdamW", "params": ADAMW},
    }


def dtype_of(settings: dict[str, Any]) -> torch.dtype:
    """Return the parameters' dtype, bfloat16 unless told otherwise."""
    dtype: torch.dtype = getattr(torch, settings.get("dtype", "bfloat16"))
    return dtype


def start(settings: dict[str, Any], swap_folder: str) -> tuple[deepspeed.DeepSpeedEngine, LossModel]:
    """Builds the model and its engine; swap files go under `swap_folder`."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rendezvous = Path(swap_folder) / f"rendezvous.{os.getpid()}"
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    model = build(settings["shape"], dtype_of(settings))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(settings, swap_folder)
    )
    return engine, model


class Trainer:
    """Runs steps and keeps each one's parts in seconds."""

    def __init__(self, settings: dict[str, Any], swap_folder: str) -> None:
        self.engine, model = start(settings, swap_folder)
        self.parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        self._batches = batches(settings["rows"], settings["shape"]["seq"])

    def step(self) -> dict[str, float]:
        """Make an optimizer step; return the seconds of forward, backward, update, and the loss."""
        tokens, targets = next(self._batches)
        started = time.perf_counter()
        loss = self.engine(tokens, targets)
        forward = time.perf_counter()
        self.engine.backward(loss)
        backward = time.perf_counter()
        self.engine.step()
        ended = time.perf_counter()
        return {
            "forward": forward - started,
            "backward": backward - forward,
            "update": ended - backward,
            "seconds": ended - started,
            "loss": float(loss.detach()),
        }


def shared_files() -> set[Path]:
    """Return the files of DeepSpeed's processes in /dev/shm."""
    return set(Path("/dev/shm").glob("deepspeed_*"))
