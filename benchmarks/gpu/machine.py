"""The GPU and its bus, by torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from timing import gpu_seconds, product_rate

COPY_BYTES = 1 << 28


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """The names of things, FLOP/s of a product in bfloat16, and bytes/s of page-locked memory each way."""
    properties = torch.cuda.get_device_properties(0)
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    to_device = gpu_seconds(lambda: device.copy_(host, non_blocking=True), 5)
    to_host = gpu_seconds(lambda: host.copy_(device, non_blocking=True), 5)
    return {
        "gpu": properties.name, "memory_bytes": properties.total_memory, "torch": torch.__version__,
        "cuda": torch.version.cuda, "flop_per_second": product_rate(),
        "to_device_bytes_per_second": COPY_BYTES / to_device, "to_host_bytes_per_second": COPY_BYTES / to_host,
    }  # fmt: skip
