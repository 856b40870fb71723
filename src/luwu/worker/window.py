"""Blocks that this worker holds, has asked for, or has given back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from luwu.worker.flatten import Block
from luwu.worker.kept import KeptBlocks
from luwu.worker.staging import Staging

_CACHED_VIEWS_PER_BLOCK = 8


@dataclass(frozen=True)
class Held:
    """A pulled block: ``flat`` has shape [elements], ``views`` one view of it for each slot."""

    flat: Tensor
    views: list[Tensor]


class Window:
    """Pulls and releases blocks, each at most once at a time; some stay on the device when they are released."""

    def __init__(self, staging: Staging, kept: KeptBlocks) -> None:
        self._staging = staging
        self._kept = kept
        self._requested: set[int] = set()
        self._held: dict[int, Held] = {}
        self._views: dict[int, dict[int, Held]] = {}

    def request(self, block: Block, *, alone: bool = False) -> None:
        """Post the pull of a block, unless it is held or asked for already. ``alone``: other workers do not."""
        if block.index in self._held or block.index in self._requested:
            return
        if not self._kept.serves(block, alone=alone):
            if self._kept.is_there(block):  # pulled alone, and now everybody pulls it
                self._kept.forget(block)
                self._staging.release(block)
            self._staging.request(block, alone=alone)
            if self._kept.stays(block):
                self._kept.note_pull(block, alone=alone)
        self._requested.add(block.index)

    def take(self, block: Block) -> Held:
        """Wait for a block that was asked for, and hold it."""
        if block.index not in self._held:
            self.request(block)
            # Views made under inference_mode could not be saved for backward later.
            with torch.inference_mode(False), torch.no_grad():
                flat = self._staging.take(block)
                self._requested.discard(block.index)
                self._held[block.index] = self._with_views(block, flat)
        return self._held[block.index]

    def holds(self, block: Block) -> bool:
        """Return True if the block is held, not only asked for."""
        return block.index in self._held

    def flat(self, block: Block) -> Tensor:
        """Return a held block, shape [elements]."""
        return self._held[block.index].flat

    def release(self, block: Block) -> None:
        """Give a block back; one only asked for is waited for first."""
        if block.index in self._requested or block.index in self._held:
            self._held.pop(block.index, None)
            if not self._kept.stays(block):
                self._staging.release(block)
            self._requested.discard(block.index)

    def begin_attempt(self) -> None:
        """Note that an attempt begins."""
        self._kept.begin_attempt()

    def end_attempt(self, *, committed: bool) -> None:
        """Give back the blocks that stayed on the device and must not be used again; nothing is held."""
        for block in self._kept.end_attempt(committed=committed):
            self._staging.release(block)

    def owner_of(self, tensor: Tensor, blocks: Iterable[Block]) -> Block | None:
        """Return which of these blocks, if held, the tensor's memory belongs to."""
        if tensor.layout is not torch.strided:
            return None
        try:
            address = tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # one of torch.func's, which has no memory of its own
            return None
        for block in blocks:
            held = self._held.get(block.index)
            if held is not None and held.flat.untyped_storage().data_ptr() == address:
                return block
        return None

    def _with_views(self, block: Block, flat: Tensor) -> Held:
        """Return a block's views, made once for each of the few places that it comes to."""
        cached = self._views.setdefault(block.index, {})
        held = cached.get(flat.data_ptr())
        if held is None:
            if len(cached) >= _CACHED_VIEWS_PER_BLOCK:
                cached.clear()
            held = cached[flat.data_ptr()] = Held(flat, views_of(block, flat))
        return held


def views_of(block: Block, flat: Tensor) -> list[Tensor]:
    """View each parameter of a block in flat memory of shape [elements]."""
    return [flat[slot.offset : slot.offset + slot.numel].view(slot.parameter.shape) for slot in block.slots]
