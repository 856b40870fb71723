"""Gradients on their way to the server: each is copied to its place in the arena as soon as it is there.

The arena holds one buffer for the root's block, whose gradients come first and last in a backward, and buffers for the
other units' blocks, used in turn; where outer units' blocks are much larger, one for these, which come rarely, so that
the others have more room. A buffer is written again only after the server is done with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from luwu.errors import MemoryBudgetError, StepOrderError
from luwu.worker.flatten import Block, Unit
from luwu.worker.interface import Endpoint
from luwu.worker.staging import Staging
from luwu.worker.sums import GradientSums
from luwu.worker.window import views_of

_PAGE_BYTES = 4096
_BUFFERS_USED = 4
_MUCH_LARGER = 2


@dataclass(eq=False)
class _Buffer:
    """A place in the arena; ``block`` is the one whose gradients it took last."""

    offset_bytes: int
    handle: int | None = None
    block: Block | None = None


@dataclass(eq=False)
class _Collected:
    """The gradients of one block so far; ``missing`` are the slots that have none yet."""

    buffer: _Buffer
    views: list[Tensor]
    missing: set[int]


class Gradients:
    """Collects and pushes the gradients of an attempt, each block once."""

    def __init__(self, units: list[Unit], endpoint: Endpoint, arena: Tensor, staging: Staging) -> None:
        self._endpoint = endpoint
        self._arena = arena
        self._staging = staging
        self._collected: dict[int, _Collected] = {}
        self._sums = GradientSums(staging.device)
        self._arena_is_at_hand = staging.device.type == "cpu"
        self._root_block = units[0].trainable
        self._outer = {block.index: block for block in _trainable_blocks([unit for unit in units if unit.outer])}
        self._root_buffer, self._outer_buffers, self._buffers = self._lay_out(units)

    def write(self, block: Block, slot: int, gradient: Tensor, *, part: bool, to_keep: bool) -> None:
        """Put the gradient of one parameter in its place.

        A ``part`` is added to the parts before, and so is one ``to_keep``, which is not pushed after this backward.

        Raises:
            StepOrderError: more blocks are being collected at once than the arena has buffers.
        """
        dense = gradient if gradient.layout is torch.strided else gradient.to_dense()
        adds_in_place = self._arena_is_at_hand and block.dtype is torch.float32
        if to_keep or block in self._sums or (part and not adds_in_place):
            self._sums.add(block, slot, dense)
            return
        collected = self._open(block)
        if slot in collected.missing:
            self._staging.store(collected.views[slot], dense)
            collected.missing.discard(slot)
        else:
            collected.views[slot].add_(dense)

    @property
    def keeps(self) -> bool:
        """Whether gradients of backward passes that have ended wait for more."""
        return self._sums.keeps

    def keep(self, block: Block) -> None:
        """Keep the block's gradients, all of which came as parts, for the next backward."""
        self._sums.keep(block)

    def push(self, block: Block) -> None:
        """Push the block, with zeros for missing gradients."""
        collected = self._open(block)
        for slot, total in self._sums.take(block):
            self._staging.store(collected.views[slot], total)
            collected.missing.discard(slot)
        self._staging.flush()
        for slot in collected.missing:
            collected.views[slot].zero_()
        collected.buffer.handle = self._endpoint.push(block.index, collected.buffer.offset_bytes)
        del self._collected[block.index]

    def settle(self) -> None:
        """Every push has been answered: the attempt has ended."""
        for buffer in [*self._buffers, *self._outer_buffers, *([self._root_buffer] if self._root_buffer else [])]:
            buffer.handle = None

    def clear(self) -> None:
        """Forget what was collected and not pushed."""
        self._staging.flush()
        self._collected.clear()
        self._sums.clear()

    def _open(self, block: Block) -> _Collected:
        collected = self._collected.get(block.index)
        if collected is not None:
            return collected
        buffer = self._take_buffer(block)
        end = buffer.offset_bytes + block.nbytes
        flat = self._arena[buffer.offset_bytes : end].view(block.dtype)
        if buffer.block is not block:
            for start, stop in block.gaps():
                flat[start:stop].zero_()
            buffer.block = block
        collected = _Collected(buffer, views_of(block, flat), set(range(len(block.slots))))
        self._collected[block.index] = collected
        return collected

    def _take_buffer(self, block: Block) -> _Buffer:
        if block is self._root_block:
            buffer = self._root_buffer
        else:
            line = self._outer_buffers if self._outer_buffers and block.index in self._outer else self._buffers
            taken = {id(collected.buffer) for collected in self._collected.values()}
            buffer = next((candidate for candidate in line if id(candidate) not in taken), None)
            if buffer is not None:  # to the end of the line: buffers are used in turn
                line.remove(buffer)
                line.append(buffer)
            else:
                buffer = self._spill(line)
        if buffer is None:
            raise StepOrderError(
                f"block {block.name}: expected the gradients of at most {len(self._buffers)} blocks at a time, found "
                "one more; leave modules whose backward runs interleaved out of `blocks`"
            )
        if buffer.handle is not None:
            self._endpoint.wait(buffer.handle)
            buffer.handle = None
        return buffer

    def _spill(self, line: list[_Buffer]) -> _Buffer | None:
        """Free one of these buffers: sum up what an outer unit's block has, whose gradients may come at any time."""
        for index, collected in self._collected.items():
            block = self._outer.get(index)
            if block is not None and collected.buffer in line:
                self._staging.flush()
                for slot, view in enumerate(collected.views):
                    if slot not in collected.missing:
                        self._sums.add(block, slot, view)
                del self._collected[index]
                return collected.buffer
        return None

    def _lay_out(self, units: list[Unit]) -> tuple[_Buffer | None, list[_Buffer], list[_Buffer]]:
        root_bytes = _whole_pages(self._root_block.nbytes) if self._root_block else 0
        outer_bytes = _largest(self._outer.values())
        size = _largest(_trainable_blocks([unit for unit in units[1:] if not unit.outer]))
        if not size or outer_bytes < _MUCH_LARGER * size:
            size, outer_bytes = max(size, outer_bytes), 0
        room = self._arena.numel() - root_bytes - outer_bytes
        count = min(room // size, _BUFFERS_USED) if size else 0
        if room < 0 or (size and count < 1):
            raise MemoryBudgetError(
                f"gradient arena: expected at least {root_bytes + outer_bytes + size} bytes (the root's block and the "
                f"largest other), found {self._arena.numel()}; raise the memory budget"
            )
        root = _Buffer(0) if self._root_block else None
        outer = [_Buffer(root_bytes)] if outer_bytes else []
        first = root_bytes + outer_bytes
        return root, outer, [_Buffer(first + index * size) for index in range(count)]


def _largest(blocks: Iterable[Block]) -> int:
    return _whole_pages(max((block.nbytes for block in blocks), default=0))


def _trainable_blocks(units: list[Unit]) -> Iterator[Block]:
    for unit in units:
        if unit.trainable is not None:
            yield unit.trainable


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
