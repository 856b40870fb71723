"""Where a pulled block is computed with: on the CPU in the window itself, on a GPU in a reused device buffer."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from luwu.errors import ConfigError
from luwu.fabric.memory import copy_past_cache

_LARGE_BYTES = 1 << 18
"""From here on a copy past the cache is faster than torch's."""


class Staging(Protocol):
    """Moves flat blocks from the window to where the model computes, and gradients into the arena."""

    device: torch.device

    def load(self, host: Tensor) -> Tensor:
        """Return the block's values, shape [elements], on the device; ``host`` lies in the window."""
        ...

    def unload(self, flat: Tensor) -> None:
        """Take back what `load` returned; afterwards the window's place may be reused."""
        ...

    def store(self, destination: Tensor, gradient: Tensor) -> None:
        """Start copying a gradient to ``destination`` on the host, converting to its dtype; both have one shape."""
        ...

    def flush(self) -> None:
        """Wait until everything stored lies on the host."""
        ...


class CpuStaging:
    """Computes with the window in place: nothing is copied but gradients."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def load(self, host: Tensor) -> Tensor:
        """Return the window's own memory."""
        return host

    def unload(self, flat: Tensor) -> None:
        """Do nothing: there is no copy."""

    def store(self, destination: Tensor, gradient: Tensor) -> None:
        """Copy at once."""
        large = gradient.nbytes >= _LARGE_BYTES
        if large and gradient.dtype == destination.dtype and gradient.is_contiguous():
            copy_past_cache(destination, gradient.detach())
        else:
            destination.copy_(gradient)

    def flush(self) -> None:
        """Do nothing: copies were made at once."""


class CudaStaging:
    """Copies blocks and gradients on a stream of its own between pinned host memory and reused device buffers.

    A copy starts when the block has been pulled, so it is not hidden behind compute; gradients are.
    """

    def __init__(self, device: torch.device, window: Tensor, arena: Tensor) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._free: dict[tuple[int, torch.dtype], list[tuple[Tensor, torch.cuda.Event]]] = {}
        self._copied: dict[int, torch.cuda.Event] = {}
        for memory in (window, arena):
            _pin(memory)

    def load(self, host: Tensor) -> Tensor:
        """Copy to a device buffer; work queued on the current stream after this call sees the values."""
        free = self._free.get((host.numel(), host.dtype))
        if free:
            flat, last_use = free.pop()
            self._stream.wait_event(last_use)
        else:
            flat = torch.empty(host.shape, dtype=host.dtype, device=self.device)
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            flat.copy_(host, non_blocking=True)
        copied = self._stream.record_event()
        torch.cuda.current_stream(self.device).wait_event(copied)
        self._copied[flat.data_ptr()] = copied
        return flat

    def unload(self, flat: Tensor) -> None:
        """Keep the buffer for the next block of its size, to be written when work queued so far is done."""
        self._copied.pop(flat.data_ptr()).synchronize()
        last_use = torch.cuda.current_stream(self.device).record_event()
        self._free.setdefault((flat.numel(), flat.dtype), []).append((flat, last_use))

    def store(self, destination: Tensor, gradient: Tensor) -> None:
        """Copy after the work that computes the gradient, beside the work queued later."""
        converted = gradient.to(destination.dtype).contiguous()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            destination.copy_(converted, non_blocking=True)
        converted.record_stream(self._stream)

    def flush(self) -> None:
        """Wait for the copies of gradients."""
        self._stream.synchronize()


def make_staging(device: torch.device, window: Tensor, arena: Tensor) -> Staging:
    """Choose by device; ``window`` and ``arena`` are whole, as bytes.

    Raises:
        ConfigError: the device is neither a CPU nor a CUDA device that is there.
    """
    if device.type == "cpu":
        return CpuStaging()
    if device.type == "cuda" and torch.cuda.is_available():
        return CudaStaging(torch.device("cuda", device.index or 0), window, arena)
    raise ConfigError(f"device: expected cpu, or cuda where torch finds one, found {device}; use device='cpu'")


def _pin(memory: Tensor) -> None:
    """Page-lock mapped memory for the process's life; the mapping ends with the process, and the lock with it."""
    runtime: Any = torch.cuda.cudart()
    code = runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
    if int(code) != 0:
        raise ConfigError(
            f"device cuda: expected to pin {memory.numel()} bytes of host memory, found CUDA error {int(code)}; "
            "raise the limit on locked memory (ulimit -l), or lower the memory budget"
        )
