"""The executor of a simulated server's step machine: its work on gradients and disk ends in any order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.jobs.disk import Disk, Version
from harness.jobs.reference import Counts, require
from luwu import _native_testing
from luwu.core.protocols import COMMITTED

if TYPE_CHECKING:
    from harness.jobs.world import World

UNDECIDED = "all workers were lost before this server knew"
"""A part of the error of a machine that nobody is left to decide for; no other is the machine's own."""

Tell = Callable[[int, float | None], None]
"""Function that answers all who voted: the end of the step, and its sum of squares."""


class Executor:
    """Carries out the machine's actions.

    Args:
        world: the history.
        number: the server's.
        disk: its disk, whose store is open.
        workers: number of workers of the run.
        tell: answers a vote.
        tell_end: the same, where the step is over.
        fail: ends the run, whose machine has failed.
        on_given_back: called when workers have their buffers back.

    Attributes:
        attached: tenure of the worker that attached last, by rank.
        failed: the run has failed, and the machine is told so.
        works: what is under way.
    """

    def __init__(
        self,
        world: World,
        number: int,
        disk: Disk,
        workers: int,
        tell: Tell,
        tell_end: Tell,
        fail: Callable[[str], None],
        on_given_back: Callable[[], None],
    ) -> None:
        self._world, self._number, self._disk, self._workers = world, number, disk, workers
        self._tell, self._tell_end, self._fail = tell, tell_end, fail
        self._on_given_back = on_given_back
        self._held: dict[int, set[int]] = {}  # ranks of the gradients that lie in their workers' buffers, by block
        shape = world.shape
        self.machine = _native_testing.StepMachine(
            shape.blocks, workers, shape.servers > 1, tuple(disk.current.counts), shape.commit_every, shape.at_once,
            shape.points_follow,
        )  # fmt: skip
        self.attached: dict[int, int] = {}
        self.failed = False
        self.works: list[Callable[[], None]] = []
        self._sums: dict[int, list[tuple[int, int, int]]] = {}  # rank, tenure, attempt of gradients, by block
        self._writing: dict[int, Callable[[], None]] = {}  # works of blocks that memory has and the disk has not
        self._owed: set[int] = set()
        self._recording = False  # the record of a step that was answered
        self._following = False  # the records of a commit point are written while later steps are made
        self._value = disk.current.value  # of the last step that was answered

    @property
    def counts(self) -> Counts:
        """Return the steps and attempts that were answered."""
        return Counts(*self.machine.counts)

    def act(self, actions: list[tuple[Any, ...]]) -> None:
        """Carry out actions of the machine, in their order."""
        for name, *what in actions:
            begin = getattr(self, f"_do_{name}", None)
            if begin is not None:
                begin(*what)

    def push(self, rank: int, tenure: int, block: int, attempt: int) -> None:
        """Take a worker's gradient of an attempt."""
        self._sums.setdefault(block, []).append((rank, tenure, attempt))
        self._held.setdefault(block, set()).add(rank)
        self.act(self.machine.push(rank, block))

    def holds_gradients(self, rank: int) -> bool:
        """Return True while gradients of a worker lie in its buffers, which it waits for."""
        return any(rank in ranks for ranks in self._held.values())

    def _give_back(self, block: int) -> None:
        if self._held.pop(block, None):
            self._on_given_back()

    def work(self, number: int) -> None:
        """End one of the works that are under way."""
        self.works.pop(number)()

    def close(self) -> None:
        """Put the last step that was answered on the disk, and do no other work; then the store is closed."""
        if self._world.rules.flushes:
            self.act(self.machine.make_durable())
        while (self._owed or self._following or self._recording) and self.works:
            self.work(0)
        self._disk.sync()

    def _do_fail(self, why: str) -> None:
        require(self.failed or UNDECIDED in why, f"the step machine failed the run: {why}")
        self._fail(why)

    def _do_refuse(self, why: str) -> None:
        require(False, f"the step machine refused: {why}")

    def _do_give_back(self, block: int) -> None:
        self._sums.pop(block, None)
        self._give_back(block)

    def _check_sum(self, block: int) -> None:
        """Check that a sum has one gradient of each worker, of the attempt that the machine is in."""
        found = self._sums.get(block, [])
        ranks = sorted(rank for rank, _, _ in found)
        require(ranks == list(range(self._workers)), f"a sum has gradients of {found}")
        attempt = self.counts.attempts
        require(all(made == attempt for _, _, made in found), f"a sum of attempt {attempt} has gradients of {found}")
        for rank, tenure, _ in found:
            require(tenure == self.attached[rank], f"a sum has a gradient of a lost worker: {found}")

    def _spoil(self) -> float:
        """Note a gradient that is not finite; return the sum of squares of a block's gradient."""
        attempt = self.counts.attempts
        if self._world.reference.spoiled.get(attempt) != self._number:
            return 1.0
        self.act(self.machine.spoiled())
        return math.nan

    def _do_keep(self, block: int) -> None:
        self._check_sum(block)
        self.works.append(lambda: self._kept(block))

    def _kept(self, block: int) -> None:
        self._give_back(block)
        self.act(self.machine.kept(block, self._spoil()))

    def _do_update(self, block: int, keeps: bool) -> None:
        if keeps:
            self._do_keep(block)
        self._check_sum(block)
        self._disk.write_chunks()
        self.works.append(lambda: self._updated(block))

    def _updated(self, block: int) -> None:
        self._give_back(block)
        self._spoil()
        self._writing[block] = lambda: self._written(block)
        self.works.append(self._writing[block])
        self.act(self.machine.caught_up(block))

    def _written(self, block: int) -> None:
        del self._writing[block]
        self._owed.discard(block)
        self.act(self.machine.written(block))

    def _do_settle(self, blocks: list[int], writes: bool) -> None:
        self._owed.update(blocks, self._writing)
        for block in blocks:
            self.works.append(lambda block=block: self._settled(block, writes))

    def _settled(self, block: int, writes: bool) -> None:
        self.act(self.machine.caught_up(block))
        if writes or not self._world.shape.resident:
            self._disk.write_chunks()
        self._owed.discard(block)
        self.act(self.machine.written(block))

    def _do_follow_point(self) -> None:
        self._following = True
        self.works.append(self._point_written)

    def _point_written(self) -> None:
        self._following = False
        self.act(self.machine.point_written())

    def _do_flush(self, blocks: list[int]) -> None:
        self._owed.update(blocks)
        for block in blocks:
            self.works.append(lambda block=block: self._flushed(block))

    def _flushed(self, block: int) -> None:
        self._disk.write_chunks()
        self._owed.discard(block)
        self.act(self.machine.written(block))

    def _do_take_back(self, blocks: list[int]) -> None:
        for write in [self._writing[block] for block in blocks if block in self._writing]:  # first to the disk
            self.works.remove(write)
            write()
        self.works.append(lambda: self.act(self.machine.taken_back()))

    def _do_write_record(self, step: int, attempts: int, rolled_back: int) -> None:
        counts = Counts(step, attempts, rolled_back)
        # A step without a norm and with a record of its own is answered after that.
        value = self._value[:step] if len(self._value) >= step else (*self._value, attempts - 1)
        reference = self._world.reference
        require(counts == reference.counts[step], f"step {step} is committed with {counts}")
        require(value == reference.values[step], f"step {step} is committed with the attempts {value}")
        self._disk.write_record(Version(counts, value))
        self._recording = step <= self.counts.step
        self.works.append(self._recorded)

    def _recorded(self) -> None:
        if self._world.rules.syncs_records:
            self._disk.sync()
        self._recording = False
        self.act(self.machine.recorded())

    def _do_answer(self, end: int, squares: float) -> None:
        require(self._world.shape.servers > 1, "only one of several servers answers before the end")
        self._tell(end, _known(squares))

    def _do_end_step(self, end: int, squares: float) -> None:
        self._sums.clear()
        for block in list(self._held):
            self._give_back(block)
        if end == COMMITTED:
            self._value = (*self._value, self.counts.attempts - 1)
        if end == COMMITTED and self._world.shape.max_norm is not None:
            require(squares == self._world.shape.squares, f"a step was clipped by a sum of squares of {squares}")
        require(end != COMMITTED or self.counts.step <= self._world.shape.steps, "there is a step too many")
        self._tell_end(end, _known(squares))


def _known(squares: float) -> float | None:
    return None if squares < 0 else squares
