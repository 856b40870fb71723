"""Decides which blocks stay on the device between their uses, and until when; `window` moves them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from luwu.worker.flatten import Block, Unit


def choose_kept(units: Sequence[Unit], room_bytes: int) -> list[Block]:
    """Return the blocks that fit into the memory together; blocks that save most pulls in a step come first.

    Of those that save as many, the last of the forward come first, because backward needs them soonest. ``units[0]`` is
    the root's.
    """
    saved = {block: _saved_pulls(unit, block) for unit in units for block in unit.blocks}
    chosen = []
    for block in sorted(saved, key=lambda block: (saved[block], block.index), reverse=True):
        if block.nbytes <= room_bytes:
            chosen.append(block)
            room_bytes -= block.nbytes
    return chosen


def _saved_pulls(unit: Unit, block: Block) -> int:
    """Return the pulls in a step that keeping a block saves.

    Forward and backward pull a layer's blocks. The blocks of the root and of outer units are mostly pulled once. A kept
    frozen block is never pulled again, a trainable one once a step.
    """
    pulls = 1 if unit.index == 0 or unit.outer else 2
    return pulls - block.trainable


class KeptBlocks:
    """Notes which of the chosen blocks are on the device with their present values.

    Workers pull in one order, so all must agree on which blocks they need not pull again. Blocks that a worker has
    pulled alone, for an evaluation of its own, therefore count for such pulls only.
    """

    def __init__(self, chosen: Iterable[Block] = ()) -> None:
        self._chosen = {block.index: block for block in chosen}
        self._by_all: set[int] = set()  # pulled by every worker
        self._alone: set[int] = set()
        self._at_begin: set[int] = set()

    def stays(self, block: Block) -> bool:
        """Return True where the block is not given back after a use."""
        return block.index in self._chosen

    def is_there(self, block: Block) -> bool:
        """Return True where the block is on the device, or on its way."""
        return block.index in self._by_all or block.index in self._alone

    def serves(self, block: Block, *, alone: bool) -> bool:
        """Return True where a pull would be in vain. ``alone``: other workers do not make it."""
        return block.index in self._by_all or (alone and block.index in self._alone)

    def note_pull(self, block: Block, *, alone: bool) -> None:
        """Note that a block which stays was asked for."""
        (self._alone if alone else self._by_all).add(block.index)

    def forget(self, block: Block) -> None:
        """Note that a block must not be used any more, before it is given back."""
        self._by_all.discard(block.index)
        self._alone.discard(block.index)

    def begin_attempt(self) -> None:
        """Remember the blocks that are there: an attempt that is rolled back leaves no more than those."""
        self._at_begin = set(self._by_all)

    def end_attempt(self, *, committed: bool) -> Collection[Block]:
        """Return the blocks to give back: a committed step has changed the trainable ones.

        After a rollback they are those that were pulled since the attempt began, because another worker may have given
        up before it pulled them.
        """
        if committed:
            dropped = {index for index in self._by_all | self._alone if self._chosen[index].trainable}
        else:
            dropped = self._by_all - self._at_begin
        self._by_all -= dropped
        self._alone -= dropped
        return [self._chosen[index] for index in sorted(dropped)]
