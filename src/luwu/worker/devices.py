"""The device that a model computes on, and its staging of blocks."""

from __future__ import annotations

import os
from functools import partial

import torch
from torch import Tensor

from luwu.core.errors import ConfigError
from luwu.core.protocols import Endpoint
from luwu.core.quantities import parse_size
from luwu.worker.device_staging import Accelerator, DeviceStaging
from luwu.worker.flatten import Block, Unit
from luwu.worker.staging import HostStaging, Staging

_CUDA_LIBRARY = "libcuda.so.1"
_DLPACK_CUDA = 2


class Device:
    """A device to compute on; ``accelerator``: None for the CPU, which computes in the server's memory itself."""

    def __init__(self, device: torch.device, accelerator: Accelerator | None = None) -> None:
        self.torch = device
        self._accelerator = accelerator

    @property
    def copies(self) -> bool:
        """True if blocks are copied to a memory of the device's own."""
        return self._accelerator is not None

    def room_for_blocks(self, device_memory: int | str | None) -> int:
        """Return the bytes of the device's memory in which blocks stay.

        Raises:
            ConfigError: it is no size, or the device has no memory of its own.
        """
        if device_memory is None:
            return 0
        if self._accelerator is None:
            raise ConfigError(
                f"device_memory: expected None with device='cpu', which computes in the server's memory itself, found "
                f"{device_memory!r}; raise the server's memory budget instead"
            )
        try:
            room = parse_size(device_memory)
        except ConfigError as error:
            raise ConfigError(f"device_memory: {error}") from error
        if room < 0:
            raise ConfigError(f"device_memory: expected a size such as 8GiB, found {room}")
        return room

    def staging(self, units: list[Unit], endpoint: Endpoint, arena: Tensor, kept: list[Block]) -> Staging:
        """Make the staging.

        ``arena``: the bytes that gradients travel through; ``kept``: blocks that stay on the device.

        Raises:
            DeviceError: the driver refuses memory. MemoryBudgetError: the arena is too small for a gradient.
        """
        if self._accelerator is None:
            return HostStaging(units, endpoint, arena)
        return DeviceStaging(units, endpoint, arena, kept, self._accelerator)


def choose_device(device: torch.device | str) -> Device:
    """Return the device of this name; ``cuda`` without a number is that of this rank, as torchrun's LOCAL_RANK has it.

    Where the program has chosen another than the first with torch.cuda.set_device, it is that one.

    Raises:
        ConfigError: it is neither a CPU nor a CUDA device that is there.
    """
    try:
        where = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device: expected cpu, cuda or cuda:NUMBER, found {device!r}; use device='cpu'") from error
    if where.type == "cpu":
        return Device(where)
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if where.type != "cuda" or not there:
        raise ConfigError(f"device: expected cpu, or cuda where torch finds one, found {device}; use device='cpu'")
    index = _own_index() if where.index is None else where.index
    if index >= there:
        raise ConfigError(
            f"device: expected cuda:0 to cuda:{there - 1}, found cuda:{index}; start as many processes on this host as "
            "it has GPUs, or name a device"
        )
    own = torch.device("cuda", index)
    stream = partial(_current_stream, own)
    return Device(own, Accelerator(own, _CUDA_LIBRARY, index, _DLPACK_CUDA, stream, torch.cuda.empty_cache))


def _own_index() -> int:
    chosen = torch.cuda.current_device()
    own = int(os.environ.get("LOCAL_RANK", 0))
    # A launcher that shows each process one GPU alone has chosen, too.
    return chosen if chosen or torch.cuda.device_count() == 1 else own


def _current_stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)
