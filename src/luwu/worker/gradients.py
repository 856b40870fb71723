"""Gradients on their way to the server: each is copied to its place in its block's memory as soon as it is there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from luwu.worker.flatten import Block, Unit
from luwu.worker.staging import Staging
from luwu.worker.sums import GradientSums
from luwu.worker.window import views_of


@dataclass(eq=False)
class _Collected:
    """The gradients of one block so far; ``missing`` are the slots that have none yet."""

    block: Block
    views: list[Tensor]
    missing: set[int]


class Gradients:
    """Collects and pushes the gradients of an attempt, each block once."""

    def __init__(self, units: list[Unit], staging: Staging) -> None:
        self._staging = staging
        self._outer = {block.index for unit in units if unit.outer for block in unit.blocks}
        self._collected: dict[int, _Collected] = {}
        self._sums = GradientSums(staging.device)

    def write(self, block: Block, slot: int, gradient: Tensor, *, part: bool, to_keep: bool) -> None:
        """Put the gradient of one parameter in its place.

        A ``part`` is added to the parts before, and so is one ``to_keep``, which is not pushed after this backward.

        Raises:
            StepOrderError: more blocks are being collected at once than there is memory for.
        """
        dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
        adds_in_place = block.dtype is torch.float32
        if to_keep or block in self._sums or (part and not adds_in_place):
            self._sums.add(block, slot, dense)
            return
        collected = self._open(block)
        if slot in collected.missing:
            self._staging.write(collected.views[slot], dense)
            collected.missing.discard(slot)
        else:
            collected.views[slot].add_(dense)

    @property
    def keeps(self) -> bool:
        """True while gradients of backward passes that have ended wait for more."""
        return self._sums.keeps

    def keep(self, block: Block) -> None:
        """Keep the block's gradients, all of which came as parts, for the next backward."""
        self._sums.keep(block)

    def push(self, block: Block) -> None:
        """Push the block, with zeros for missing gradients."""
        collected = self._open(block)
        for slot, total in self._sums.take(block):
            self._staging.write(collected.views[slot], total)
            collected.missing.discard(slot)
        for slot in collected.missing:
            collected.views[slot].zero_()
        self._staging.push(block)
        del self._collected[block.index]

    def clear(self) -> None:
        """Forget what was collected and not pushed."""
        for collected in self._collected.values():
            self._staging.drop_gradient(collected.block)
        self._collected.clear()
        self._sums.clear()

    def _open(self, block: Block) -> _Collected:
        collected = self._collected.get(block.index)
        if collected is None:
            self._make_room(block)
            views = views_of(block, self._staging.gradient(block))
            collected = self._collected[block.index] = _Collected(block, views, set(range(len(block.slots))))
        return collected

    def _make_room(self, block: Block) -> None:
        """Move gradients that are in the way into sums: an outer unit's block, whose gradients may come at any time."""
        for index in self._staging.in_the_way(block):
            if index in self._outer:
                spilled = self._collected.pop(index)
                for slot, view in enumerate(spilled.views):
                    if slot not in spilled.missing:
                        self._sums.add(spilled.block, slot, view)
                self._staging.drop_gradient(spilled.block)
                return
