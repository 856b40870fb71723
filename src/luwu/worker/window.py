"""Blocks that this worker holds in the window, has asked for, or has given back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from luwu.worker.flatten import Block
from luwu.worker.interface import Endpoint
from luwu.worker.staging import Staging

_CACHED_VIEWS_PER_BLOCK = 8


@dataclass(frozen=True)
class Held:
    """A pulled block: ``flat`` has shape [elements], ``views`` one view of it for each slot."""

    flat: Tensor
    views: list[Tensor]


class Window:
    """Pulls and releases blocks, each at most once at a time."""

    def __init__(self, endpoint: Endpoint, staging: Staging) -> None:
        self._endpoint = endpoint
        self._memory = endpoint.window
        self._staging = staging
        self._pending: dict[int, int] = {}
        self._held: dict[int, Held] = {}
        self._views: dict[int, dict[int, Held]] = {}

    def request(self, block: Block, *, alone: bool = False) -> None:
        """Post the pull of a block, unless it is held or asked for already. ``alone``: other workers do not."""
        if block.index not in self._held and block.index not in self._pending:
            self._pending[block.index] = self._endpoint.pull(block.index, alone)

    def take(self, block: Block) -> Held:
        """Wait for a block that was asked for, and hold it."""
        if block.index not in self._held:
            self.request(block)
            offset = self._endpoint.wait(self._pending[block.index])
            del self._pending[block.index]
            self._held[block.index] = self._place(block, offset)
        return self._held[block.index]

    def holds(self, block: Block) -> bool:
        """Whether the block is held, not only asked for."""
        return block.index in self._held

    def flat(self, block: Block) -> Tensor:
        """Return a held block, shape [elements]."""
        return self._held[block.index].flat

    def release(self, block: Block) -> None:
        """Give a block back; one only asked for is waited for first."""
        if block.index in self._pending:
            self._endpoint.wait(self._pending[block.index])
            del self._pending[block.index]
        elif block.index in self._held:
            self._staging.unload(self._held.pop(block.index).flat)
        else:
            return
        self._endpoint.release(block.index)

    def owner_of(self, tensor: Tensor, blocks: Iterable[Block]) -> Block | None:
        """Return which of these blocks, if held, the tensor's memory belongs to."""
        if tensor.layout is not torch.strided:
            return None
        address = tensor.untyped_storage().data_ptr()
        for block in blocks:
            held = self._held.get(block.index)
            if held is not None and held.flat.untyped_storage().data_ptr() == address:
                return block
        return None

    def _place(self, block: Block, offset: int) -> Held:
        # Views made under inference_mode could not be saved for backward later.
        with torch.inference_mode(False), torch.no_grad():
            cached = self._views.setdefault(block.index, {})
            host = cached.get(offset)
            if host is None:
                flat = torch.frombuffer(self._memory, dtype=block.dtype, count=block.elements, offset=offset)
                if len(cached) >= _CACHED_VIEWS_PER_BLOCK:
                    cached.clear()
                host = cached[offset] = Held(flat, views_of(block, flat))
            loaded = self._staging.load(host.flat)
            return host if loaded is host.flat else Held(loaded, views_of(block, loaded))


def views_of(block: Block, flat: Tensor) -> list[Tensor]:
    """View each parameter of a block in flat memory of shape [elements]."""
    return [flat[slot.offset : slot.offset + slot.numel].view(slot.parameter.shape) for slot in block.slots]
