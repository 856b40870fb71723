"""Decides which states of a disk a power cut may leave.

A history is made of changes, the parts of calls that may be lost apart from each other. A file system that keeps only
what POSIX promises may lose each of them, or a part of the sectors of a write, until a sync of its file, or of its
folder for a name, has begun after the change had ended, and has ended itself. Nothing else is kept in order: a name may
be there before the file's bytes, and a later write without an earlier one.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.disk.image import TOP, Image
from harness.disk.recorder import Call, Kind

SECTOR = 512
"""Bytes that a disk writes whole or not at all."""

TORN_SHARE = 0.3
"""Share of the writes in a state by chance of which only some sectors are there."""

NEVER = math.inf


@dataclass(frozen=True)
class Change:
    """A change of one file or folder, which is there whole or not, but for the sectors of a write.

    Attributes:
        number: the file or folder.
        begin, end: of the call.
        data, offset: bytes that are written.
        size: the file's new size; a write can only make it grow, a truncation sets it.
        cuts: the size is set.
        names: in a folder, what each name means from now on; None: nothing.
        durable: the end of the first sync that covers it.
        text: the call, for people.
    """

    number: int
    begin: int
    end: int
    text: str
    data: bytes = b""
    offset: int = 0
    size: int | None = None
    cuts: bool = False
    names: dict[str, int | None] = field(default_factory=dict)
    durable: float = NEVER


@dataclass(frozen=True)
class Sync:
    """A sync of a file or of a folder."""

    number: int
    begin: float
    end: float
    site: str
    text: str


@dataclass(frozen=True)
class Mark:
    """A statement of an operation about its store at a moment: "is LABEL" or "may LABEL"."""

    at: int
    text: str


class _Disk:
    """An image under change: a file's bytes and its size change apart from each other."""

    def __init__(self, image: Image) -> None:
        self.folders = {number: dict(names) for number, names in image.folders.items()}
        self.files = {number: bytearray(content) for number, content in image.files.items()}
        self.sizes = {number: len(content) for number, content in self.files.items()}

    def copy(self) -> _Disk:
        copy = _Disk(Image())
        copy.folders = {number: dict(names) for number, names in self.folders.items()}
        copy.files = {number: bytearray(content) for number, content in self.files.items()}
        copy.sizes = dict(self.sizes)
        return copy

    def image(self) -> Image:
        image = Image()
        image.folders = {number: dict(names) for number, names in self.folders.items()}
        for number, content in self.files.items():
            size = self.sizes[number]
            image.files[number] = content[:size] + bytes(max(0, size - len(content)))
        return image

    def apply(self, change: Change, sectors: frozenset[int] | None = None) -> None:
        """Make a change, or of a write some sectors."""
        if change.names:
            names = self.folders[change.number]
            for name, number in change.names.items():
                if number is None:
                    names.pop(name, None)
                else:
                    names[name] = number
            return
        content = self.files[change.number]
        if change.data:
            self._write(content, change, sectors)
        if change.size is not None:
            if change.cuts:
                content[change.size :] = b""
            size = change.size if change.cuts else max(change.size, self.sizes[change.number])
            self.sizes[change.number] = size

    def _write(self, content: bytearray, change: Change, sectors: frozenset[int] | None) -> None:
        end = change.offset + len(change.data)
        content.extend(bytes(max(0, end - len(content))))
        if sectors is None:
            content[change.offset : end] = change.data
            return
        for sector in sectors:
            part = change.data[sector * SECTOR : (sector + 1) * SECTOR]
            at = change.offset + sector * SECTOR
            content[at : at + len(part)] = part


class History:
    """The changes, syncs and marks of a log, over what was on the disk before it, which is durable."""

    def __init__(self, before: Image, calls: Sequence[Call], root: str) -> None:
        self.before = _Disk(before)
        self.changes: list[Change] = []
        self.syncs: list[Sync] = []
        self.marks: list[Mark] = []
        self._root = root.rstrip("/")
        self._disk = _Disk(before)
        self._open: dict[int, int] = {}
        for call in calls:
            self._take(call)
        self._cover()

    @property
    def end(self) -> float:
        """A moment after everything."""
        ends = [each.end for each in (*self.changes, *self.syncs)] + [mark.at for mark in self.marks]
        return max(ends, default=0) + 0.5

    def after(self) -> Image:
        """Return the image after the last call, as long as there is power."""
        return self._disk.image()

    def with_syncs(self, other: Callable[[Sync], Sync | None]) -> History:
        """Return the history with other syncs: each is replaced by what the function returns, or removed."""
        history = History(Image(), [], self._root)
        history.before, history.marks, history._disk = self.before, self.marks, self._disk
        history.syncs = [kept for kept in map(other, self.syncs) if kept is not None]
        history.changes = self.changes
        history._cover()
        return history

    def _cover(self) -> None:
        """Note for each change when a sync makes it durable."""
        of: dict[int, list[Sync]] = {}
        for sync in self.syncs:
            of.setdefault(sync.number, []).append(sync)

        def covered(change: Change) -> Change:
            ends = [sync.end for sync in of.get(change.number, []) if sync.begin > change.end]
            return replace(change, durable=min(ends, default=NEVER))

        self.changes = [covered(change) for change in self.changes]

    # ---- calls become changes --------------------------------------------------------------------------------------

    def _take(self, call: Call) -> None:
        text = f"{call.name} {call.path[len(self._root) :]}"
        if call.kind == Kind.MARK:
            if call.name.startswith(("is ", "may ")):
                self.marks.append(Mark(call.end, call.name))
        elif call.kind == Kind.OPEN:
            self._opened(call, text)
        elif call.kind == Kind.SYNC:
            self.syncs.append(Sync(self._open[call.handle], call.begin, call.end, call.site, text))
        elif call.kind in (Kind.RENAME, Kind.LINK, Kind.UNLINK, Kind.MAKE_FOLDER):
            self._named(call, text)
        elif call.kind in (Kind.WRITE, Kind.TRUNCATE, Kind.ALLOCATE, Kind.PUNCH):
            self._written(call, text)

    def _change(self, change: Change) -> None:
        self.changes.append(change)
        self._disk.apply(change)

    def _written(self, call: Call, text: str) -> None:
        change = Change(self._open[call.handle], call.begin, call.end, text)
        if call.kind == Kind.TRUNCATE:
            return self._change(replace(change, size=call.length, cuts=True))
        if call.kind != Kind.ALLOCATE:
            data = call.data if call.kind == Kind.WRITE else bytes(call.length)
            self._change(replace(change, data=data, offset=call.offset))
        size = call.offset + call.length
        if call.kind != Kind.PUNCH and size > self._disk.sizes[change.number]:
            self._change(replace(change, size=size, text=f"size of {text}"))
        return None

    def _opened(self, call: Call, text: str) -> None:
        number = TOP
        if call.path != self._root:
            folder, name = self._place(call.path)
            without_name = call.offset & os.O_TMPFILE == os.O_TMPFILE
            found = None if without_name else self._disk.folders[folder].get(name)
            number = self._make_file() if found is None else found
            change = Change(number, call.begin, call.end, text)
            if found is None and not without_name:
                self._change(replace(change, number=folder, names={name: number}))
            elif call.offset & os.O_TRUNC:
                self._change(replace(change, size=0, cuts=True))
        self._open[call.handle] = number

    def _named(self, call: Call, text: str) -> None:
        folder, name = self._place(call.path)
        change = Change(folder, call.begin, call.end, text)
        if call.kind == Kind.MAKE_FOLDER:
            return self._change(replace(change, names={name: self._make_folder()}))
        if call.kind == Kind.UNLINK:
            return self._change(replace(change, names={name: None}))
        to, other = self._place(call.other)
        number = self._disk.folders[folder][name]
        change = replace(change, text=f"{text} -> {call.other[len(self._root) :]}")
        if call.kind == Kind.LINK:
            return self._change(replace(change, number=to, names={other: number}))
        if self._disk.folders[to].get(other) == number:
            return None  # two names of one file: renaming does nothing
        if to == folder:
            return self._change(replace(change, names={name: None, other: number}))
        self._change(replace(change, number=to, names={other: number}))
        return self._change(replace(change, names={name: None}))

    def _place(self, path: str) -> tuple[int, str]:
        """Return the number of the folder that a path lies in, and its name there."""
        number = TOP
        *above, name = path[len(self._root) :].strip("/").split("/")
        for part in above:
            number = self._disk.folders[number][part]
        return number, name

    def _make_file(self) -> int:
        """Make a file without a name, which is on the disk from the beginning: only its name can be lost."""
        number = 1 + max([*self._disk.folders, *self._disk.files])
        for disk in (self.before, self._disk):
            disk.files[number], disk.sizes[number] = bytearray(), 0
        return number

    def _make_folder(self) -> int:
        """Make a folder without a name, as `_make_file`."""
        number = 1 + max([*self._disk.folders, *self._disk.files])
        for disk in (self.before, self._disk):
            disk.folders[number] = {}
        return number


@dataclass(frozen=True)
class State:
    """The disk that one power cut leaves.

    Attributes:
        kept: of the changes that no sync had covered: those that are there, by their places in the history.
        torn: of some of them, which of its sectors.
        text: how the state was chosen, for people.
    """

    kept: frozenset[int]
    text: str
    torn: tuple[tuple[int, frozenset[int]], ...] = ()


def moments(history: History) -> Iterator[Moment]:
    """Return the moments at which a power cut can leave what none at another moment can.

    Between two of them changes are only added, and each of these may be lost. So the last moment before a sync ends,
    or before the program says what it holds, has all states of those before it.
    """
    ends = {sync.end - 0.5 for sync in history.syncs} | {mark.at - 0.5 for mark in history.marks}
    for at in [*sorted(ends), history.end]:
        yield Moment(history, at)


class Moment:
    """A moment of a history at which the power may be cut.

    Attributes:
        at: on the clock of the calls.
        promise: number of marks before it: what the program has said.
        pending: places of the changes that may be lost.
    """

    def __init__(self, history: History, at: float) -> None:
        self.at = at
        self.promise = sum(mark.at <= at for mark in history.marks)
        self._changes = history.changes
        self.pending = [place for place, change in enumerate(self._changes) if change.begin <= at < change.durable]
        self._first = self.pending[0] if self.pending else len(self._changes)
        self._base = history.before.copy()
        for change in self._changes[: self._first]:
            if change.begin <= at:
                self._base.apply(change)

    def image(self, state: State) -> Image:
        """Return the disk of a state."""
        disk = self._base.copy()
        torn = dict(state.torn)
        for place, change in enumerate(self._changes[self._first :], self._first):
            if change.durable <= self.at or place in state.kept:
                disk.apply(change, torn.get(place))
        return disk.image()

    def chosen_states(self) -> Iterator[State]:
        """Return the states that break one rule each: nothing kept, one change lost, one alone, one torn."""
        everything = frozenset(self.pending)
        yield State(everything, "all is there")
        if not self.pending:
            return
        yield State(frozenset(), "all is lost")
        for number, place in enumerate(self.pending):
            text = self._changes[place].text
            yield State(everything - {place}, f"lost: {text}")
            yield State(frozenset({place}), f"alone: {text}")
            yield State(frozenset(self.pending[:number]), f"up to: {text}")
        for name, places in self.groups().items():
            yield State(everything - places, f"all lost of {name}")
            yield State(places, f"alone, all of {name}")
        for place in self.pending:
            text = self._changes[place].text
            for name, sectors in _tears(self._sectors(place)):
                yield State(everything, f"{name} of: {text}", ((place, sectors),))
                yield State(frozenset({place}), f"alone, {name} of: {text}", ((place, sectors),))

    def groups(self) -> dict[str, frozenset[int]]:
        """Return the changes that may be lost by the file's name, the same in all folders of a store."""
        found: dict[str, set[int]] = {}
        for place in self.pending:
            found.setdefault(self._changes[place].text.rsplit("/", 1)[-1], set()).add(place)
        return {name: frozenset(places) for name, places in found.items()}

    def random_state(self, chance: random.Random) -> State:
        """Return any state: some changes are kept, some of them torn."""
        share = chance.random()
        kept = [place for place in self.pending if chance.random() < share]
        torn = []
        for place in kept:
            count = self._sectors(place)
            if count > 1 and chance.random() < TORN_SHARE:
                part = chance.random()
                torn.append((place, frozenset(sector for sector in range(count) if chance.random() < part)))
        return State(frozenset(kept), "by chance", tuple(torn))

    def _sectors(self, place: int) -> int:
        return -(-len(self._changes[place].data) // SECTOR)


def _tears(count: int) -> Iterator[tuple[str, frozenset[int]]]:
    """Return ways to tear a write of some sectors."""
    if count < 2:
        return
    yield "first sector", frozenset({0})
    yield "all but the first sector", frozenset(range(1, count))
    yield "last sector", frozenset({count - 1})
    yield "all but the last sector", frozenset(range(count - 1))
    yield "every second sector", frozenset(range(0, count, 2))
