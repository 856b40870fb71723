"""Memory that blocks are computed with: the server's memory itself on a CPU, a few device buffers on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from luwu.core.errors import MemoryBudgetError, StepOrderError
from luwu.core.native import PAGE_BYTES, copy_past_cache
from luwu.core.protocols import Endpoint
from luwu.worker.flatten import Block, Unit

_LARGE_BYTES = 1 << 18
"""Bytes from which a copy past the cache is faster than torch's."""

_BUFFERS_USED = 4
_MUCH_LARGER = 2


class Staging(Protocol):
    """Moves flat blocks from the window to where the model computes, and gradients to the arena.

    A block is requested, taken and released in turn. A gradient's memory is asked for, written and pushed in turn.
    """

    device: torch.device

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's own memory that blocks and gradients have, which torch does not count."""
        ...

    def request(self, block: Block, *, alone: bool) -> None:
        """Start to pull a block. ``alone``: other workers do not."""
        ...

    def take(self, block: Block) -> Tensor:
        """Wait for a requested block; return its values, shape [elements], on the device."""
        ...

    def release(self, block: Block) -> None:
        """Give back a block that was requested, taken or not."""
        ...

    def gradient(self, block: Block) -> Tensor:
        """Return memory for the block's gradient, shape [elements], on the device; its padding is zero.

        Raises:
            StepOrderError: more gradients are written at once than there is room for.
        """
        ...

    def write(self, place: Tensor, gradient: Tensor) -> None:
        """Copy one parameter's gradient to its place in the block's, converting its dtype; both have one shape."""
        ...

    def push(self, block: Block) -> None:
        """Send the block's gradient to the server when it has been computed."""
        ...

    def in_the_way(self, block: Block) -> Collection[int]:
        """Return the blocks, by index, whose gradients have all memory for this one's; none: there is room."""
        ...

    def drop_gradient(self, block: Block) -> None:
        """Forget a gradient that is not to be pushed."""
        ...

    def settle(self) -> None:
        """Wait until everything released is given back and everything pushed is on its way to the server."""
        ...

    def answered(self) -> None:
        """Note that the attempt has ended: the server has read every gradient."""
        ...


@dataclass(eq=False)
class _Buffer:
    """A place in the arena; ``block`` is the one whose gradient it took last."""

    offset_bytes: int
    handle: int | None = None
    block: Block | None = None


class HostStaging:
    """Computes with the window and the arena in place: nothing is copied but gradients.

    The arena holds one buffer for the root's block, whose gradients come first and last in a backward, and buffers for
    the other units' blocks, used in turn; where outer units' blocks are much larger, one for these, which come rarely,
    so that the others have more room. A buffer is written again only after the server is done with it.
    """

    def __init__(self, units: list[Unit], endpoint: Endpoint, arena: Tensor) -> None:
        self.device = torch.device("cpu")
        self._endpoint = endpoint
        self._window = endpoint.window
        self._arena = arena
        self._requested: dict[int, int] = {}
        self._open: dict[int, _Buffer] = {}
        self._root_block = units[0].trainable
        self._outer = {block.index: block for block in _trainable_blocks([unit for unit in units if unit.outer])}
        self._root_buffer, self._outer_buffers, self._buffers = self._lay_out(units)

    @property
    def device_bytes(self) -> int:
        """None: blocks are computed with in place."""
        return 0

    def request(self, block: Block, *, alone: bool) -> None:
        """Post the pull."""
        self._requested[block.index] = self._endpoint.pull(block.index, alone)

    def take(self, block: Block) -> Tensor:
        """Return the window's own memory."""
        offset = self._endpoint.wait(self._requested[block.index])
        del self._requested[block.index]
        return torch.frombuffer(self._window, dtype=block.dtype, count=block.elements, offset=offset)

    def release(self, block: Block) -> None:
        """Give the window's place back; a block only requested is waited for first."""
        if block.index in self._requested:
            self._endpoint.wait(self._requested[block.index])
            del self._requested[block.index]
        self._endpoint.release(block.index)

    def gradient(self, block: Block) -> Tensor:
        """Return the arena's own memory."""
        buffer = self._open[block.index] = self._take_buffer(block)
        flat = self._arena[buffer.offset_bytes : buffer.offset_bytes + block.nbytes].view(block.dtype)
        if buffer.block is not block:
            block.clear_padding(flat)
            buffer.block = block
        return flat

    def write(self, place: Tensor, gradient: Tensor) -> None:
        """Copy at once."""
        large = gradient.nbytes >= _LARGE_BYTES
        if large and gradient.dtype == place.dtype and gradient.is_contiguous():
            copy_past_cache(place, gradient.detach())
        else:
            place.copy_(gradient)

    def push(self, block: Block) -> None:
        """Post the push."""
        buffer = self._open.pop(block.index)
        buffer.handle = self._endpoint.push(block.index, buffer.offset_bytes)

    def in_the_way(self, block: Block) -> Collection[int]:
        """Return the blocks that have all buffers."""
        if block is self._root_block:
            return ()
        line = self._line_of(block)
        theirs = [index for index, buffer in self._open.items() if buffer in line]
        return theirs if len(theirs) == len(line) else ()

    def drop_gradient(self, block: Block) -> None:
        """Let its buffer be used again."""
        self._open.pop(block.index, None)  # one whose push was interrupted is gone

    def settle(self) -> None:
        """Do nothing: copies were made and requests posted at once."""

    def answered(self) -> None:
        """Let every buffer be used again."""
        for buffer in [*self._buffers, *self._outer_buffers, *([self._root_buffer] if self._root_buffer else [])]:
            buffer.handle = None

    def _take_buffer(self, block: Block) -> _Buffer:
        if block is self._root_block:
            buffer = self._root_buffer
        else:
            line = self._line_of(block)
            taken = list(self._open.values())
            buffer = next((candidate for candidate in line if candidate not in taken), None)
            if buffer is not None:  # to the end of the line: buffers are used in turn
                line.remove(buffer)
                line.append(buffer)
        if buffer is None:
            raise StepOrderError(
                f"block {block.name}: expected the gradients of at most {len(self._buffers)} blocks at a time, found "
                "one more; leave modules whose backward runs interleaved out of `blocks`"
            )
        if buffer.handle is not None:
            self._endpoint.wait(buffer.handle)
            buffer.handle = None
        return buffer

    def _line_of(self, block: Block) -> list[_Buffer]:
        return self._outer_buffers if self._outer_buffers and block.index in self._outer else self._buffers

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
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
