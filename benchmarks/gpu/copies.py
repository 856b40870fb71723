"""Copies from and to shared memory that is registered, as the fabric's is, against memory that the driver allocated."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import torch
from timing import gpu_seconds
from torch import Tensor

LEAST = 0.95
BYTES = 1 << 29


def registered(nbytes: int, *, lock: bool = True) -> Tensor:
    """Shared memory, page-locked for the rest of the process's life where ``lock`` says so."""
    file = os.memfd_create("accept")
    os.ftruncate(file, nbytes)
    memory = torch.frombuffer(mmap.mmap(file, nbytes), dtype=torch.uint8)
    memory.fill_(1)
    if not lock:
        return memory
    code = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), nbytes, 0)
    if int(code):
        raise RuntimeError(f"cudaHostRegister: error {int(code)}")
    return memory


def rates(host: Tensor, other: Tensor, repeats: int) -> dict[str, float]:
    """Bytes/s to the device, from it, and both at once, two copies on two streams."""
    device, second = (torch.empty(BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    out = torch.cuda.Stream()

    def both() -> None:
        out.wait_stream(torch.cuda.current_stream())
        device.copy_(host, non_blocking=True)
        with torch.cuda.stream(out):
            other.copy_(second, non_blocking=True)
        torch.cuda.current_stream().wait_stream(out)

    return {
        "to_device": BYTES / gpu_seconds(lambda: device.copy_(host, non_blocking=True), repeats),
        "to_host": BYTES / gpu_seconds(lambda: host.copy_(device, non_blocking=True), repeats),
        "both": 2 * BYTES / gpu_seconds(both, repeats),
    }


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Rates of both kinds of memory, in turn, and their ratios."""
    repeats = 3 if smoke else 15
    kinds = {
        "shared": (registered(BYTES), registered(BYTES)),
        "allocated": tuple(torch.empty(BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)),
    }
    found = {name: rates(*pair, repeats) for name, pair in kinds.items()}
    ratios = {way: found["shared"][way] / found["allocated"][way] for way in found["shared"]}
    ok = None if smoke else min(ratios.values()) >= LEAST
    return {"ok": ok, "ratios": ratios, "bytes_per_second": found}
