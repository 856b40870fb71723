"""Gradients that come in parts, from micro-batches or from several backward passes: summed in float32, rounded once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from luwu.worker.flatten import Block
from luwu.worker.window import views_of

_SPARE_BUFFERS = 2


@dataclass(eq=False)
class _Sum:
    """The gradient of one block so far: ``flat`` has shape [elements], ``missing`` are the slots without any."""

    flat: Tensor
    views: list[Tensor]
    missing: set[int]

    def add(self, slot: int, gradient: Tensor) -> None:
        if slot in self.missing:
            self.views[slot].copy_(gradient)
            self.missing.discard(slot)
        else:
            self.views[slot].add_(gradient)

    def parts(self) -> Iterator[tuple[int, Tensor]]:
        return ((slot, view) for slot, view in enumerate(self.views) if slot not in self.missing)


class GradientSums:
    """Adds gradients up in the order in which they come: within a backward on the device, over several on the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: dict[int, _Sum] = {}
        self._kept: dict[int, _Sum] = {}
        self._spare: list[Tensor] = []

    def __contains__(self, block: Block) -> bool:
        return block.index in self._open or block.index in self._kept

    @property
    def keeps(self) -> bool:
        """True while there are sums from backward passes that have ended."""
        return bool(self._kept)

    def add(self, block: Block, slot: int, gradient: Tensor) -> None:
        """Add the gradient of one parameter, of any floating dtype."""
        found = self._open.get(block.index)
        if found is None:
            # On a CPU both kinds of sum are in one place: go on with the one that was kept.
            kept = self._kept.pop(block.index, None) if self._device.type == "cpu" else None
            found = self._open[block.index] = kept or self._make(block, self._device)
        found.add(slot, gradient)

    def keep(self, block: Block) -> None:
        """Keep what came in this backward for the next one."""
        found = self._open.pop(block.index, None)
        if found is None:
            return
        if self._device.type == "cpu":
            self._kept[block.index] = found
            return
        kept = self._kept.get(block.index)
        if kept is None:
            kept = self._kept[block.index] = self._make(block, torch.device("cpu"))
        for slot, view in found.parts():
            kept.add(slot, view.to(kept.flat.device))
        self._reuse(found)

    def take(self, block: Block) -> list[tuple[int, Tensor]]:
        """Return the block's sums by slot, float32 on the device, and forget them: they stay until the next `add`."""
        kept, found = self._kept.pop(block.index, None), self._open.pop(block.index, None)
        if kept is not None and kept.flat.device != self._device:
            found = found or self._make(block, self._device)
            for slot, view in kept.parts():
                found.add(slot, view.to(self._device))
        found = found or kept
        if found is None:
            return []
        self._reuse(found)
        return list(found.parts())

    def clear(self) -> None:
        """Forget all sums."""
        self._open.clear()
        self._kept.clear()

    def _make(self, block: Block, device: torch.device) -> _Sum:
        flat = next((old for old in self._spare if old.numel() == block.elements and old.device == device), None)
        self._spare = [old for old in self._spare if old is not flat]
        if flat is None:
            flat = torch.empty(block.elements, dtype=torch.float32, device=device)
        return _Sum(flat, views_of(block, flat), set(range(len(block.slots))))

    def _reuse(self, old: _Sum) -> None:
        if old.flat.device == self._device and len(self._spare) < _SPARE_BUFFERS:
            self._spare.append(old.flat)
