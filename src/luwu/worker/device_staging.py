"""Blocks on a GPU: native code copies them beside compute, between memory that the server shares and device buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from luwu.core import native
from luwu.core.forks import OfThisProcess
from luwu.core.protocols import Endpoint
from luwu.worker.flatten import Block, Unit

_DEPTH = 3
"""Buffers of each size and direction."""


@dataclass(frozen=True)
class Accelerator:
    """A device with a memory of its own, and its names in native code and in torch.

    Attributes:
        device: torch's name of the device.
        library: the driver's shared library.
        ordinal: the driver's number of the device.
        memory_kind: DLPack's number for the kind of memory that its addresses lie in.
        stream: returns the driver's handle of the stream that torch computes on now.
        make_room: gives memory of the device back that torch holds and does not use.
    """

    device: torch.device
    library: str
    ordinal: int
    memory_kind: int
    stream: Callable[[], int]
    make_room: Callable[[], None]


class DeviceStaging(OfThisProcess):
    """Blocks and gradients in a ring of device buffers, whose addresses stay.

    Work that torch queues after `take` sees the block's values, and what it queues before `release` or `push` is the
    last to use the buffer. Nothing waits for the device but `settle`; `take` and `gradient` wait while their buffer is
    not known yet, for the pull to land or for a buffer to be free.
    """

    _what = "a model on a device"

    def __init__(
        self, units: list[Unit], endpoint: Endpoint, arena: Tensor, kept: list[Block], accelerator: Accelerator
    ) -> None:
        super().__init__()
        blocks = {block.index: block for unit in units for block in unit.blocks}
        self.device = accelerator.device
        self._endpoint = endpoint
        self._accelerator = accelerator
        self._engine = native.CopyEngine(
            endpoint.data_plane,
            accelerator.library,
            accelerator.ordinal,
            [blocks[index].nbytes for index in range(len(blocks))],
            np.asarray(endpoint.window, dtype=np.uint8),
            arena.numpy(),
            _DEPTH,
            [block.index for block in kept],
            accelerator.make_room,
        )
        self._memory: dict[int, Tensor] = {}  # by address: buffers live as long as the engine
        self._last: dict[int, Block] = {}  # by address, whose gradient a buffer took last

    @property
    def device_bytes(self) -> int:
        """Bytes of all buffers so far."""
        return int(self._engine.stats()["device_bytes"])

    def request(self, block: Block, *, alone: bool) -> None:
        """Pull the block; it is copied to the device when it has landed."""
        self._engine.request(block.index, alone)

    def take(self, block: Block) -> Tensor:
        """Return the block's buffer."""
        return self._at(self._engine.take(block.index, self._accelerator.stream()), block)

    def release(self, block: Block) -> None:
        """Release the buffer; it is filled again when the work queued so far is done."""
        self._engine.release(block.index, self._accelerator.stream())

    def gradient(self, block: Block) -> Tensor:
        """Return a buffer to write after the last copy out of it."""
        address = self._engine.gradient(block.index, self._accelerator.stream())
        flat = self._at(address, block)
        if self._last.get(address) is not block:
            block.clear_padding(flat)
            self._last[address] = block
        return flat

    def write(self, place: Tensor, gradient: Tensor) -> None:
        """Copy on the device."""
        place.copy_(gradient)

    def push(self, block: Block) -> None:
        """Copy the gradient out, and push it, when the work queued so far is done."""
        self._engine.push(block.index, self._accelerator.stream())

    def in_the_way(self, block: Block) -> Collection[int]:
        """Return none: there is a buffer more where one is needed."""
        return ()

    def drop_gradient(self, block: Block) -> None:
        """Release the gradient's buffer."""
        self._engine.drop_gradient(block.index)

    def settle(self) -> None:
        """Wait for the copies."""
        self._engine.settle()
        for block, handle in self._engine.take_pushed():
            self._endpoint.note_push(block, handle)

    def answered(self) -> None:
        """Release every place in the arena."""
        self._engine.answered()

    def _at(self, address: int, block: Block) -> Tensor:
        memory = self._memory.get(address)
        if memory is None:
            kind, ordinal = self._accelerator.memory_kind, self._accelerator.ordinal
            memory = self._memory[address] = native.device_bytes(address, block.nbytes, kind, ordinal, self._engine)
        return memory.view(block.dtype)
