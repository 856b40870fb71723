"""Takes each sync of an operation away, or lets it come late, and sees that a power cut is not survived any more.

It is the control of `cutting`: a sync that nothing misses is not needed, or the states that are opened show too little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.disk.cutting import promises_of
from harness.disk.power import History, Moment, State, Sync, moments
from harness.disk.record import recorded
from harness.disk.sites import line_of, lines_of

LATE_IS_HARMLESS = {
    "src/luwu/store/outputs.py": "an export compares the checksum of each file that its journal names with the file's",
}
"""Sources whose syncs only have to end before the program says so, although other changes follow them, and why."""


@dataclass(frozen=True)
class Removal:
    """The syncs of one place of the program, taken away from one operation or delayed in it.

    Attributes:
        line: source and line of the place.
        how: "removed", or "late": as late as it may be, just before the program says what it holds.
        needed: false where late is as good: nothing is changed between the syncs and what the program says next, or
            the source is one of `LATE_IS_HARMLESS`.
        caught: the first state that is wrong then, or "".
    """

    operation: str
    line: str
    how: str
    needed: bool
    caught: str


def removals(name: str) -> list[Removal]:
    """Take each sync of an operation away in turn; it runs in a process of `recording_pool`."""
    history, promises = recorded(name).history, promises_of(name)

    def first_wrong(changed: History) -> str:
        for moment, state in states_without(history, changed):
            problem = promises.problem(moment, state, history.marks)
            if problem:
                return str(problem)
        return ""

    found = []
    for line in lines_of(sync.site for sync in history.syncs):
        found.append(Removal(name, line, "removed", True, first_wrong(without(history, line))))
        orders = line.rsplit(":", 1)[0] not in LATE_IS_HARMLESS and orders_changes(history, line)
        found.append(Removal(name, line, "late", orders, first_wrong(late(history, line)) if orders else ""))
    return found


def without(history: History, line: str) -> History:
    """Return the history as if the syncs of one place were not there."""
    return history.with_syncs(lambda sync: None if line_of(sync.site) == line else sync)


def late(history: History, line: str) -> History:
    """Return the history as if the syncs of one place came as late as they may."""

    def moved(sync: Sync) -> Sync:
        return sync if line_of(sync.site) != line else replace(sync, end=_promise_after(history, sync) - 0.25)

    return history.with_syncs(moved)


def orders_changes(history: History, line: str) -> bool:
    """Return true when something is changed between a sync of this place and what the program says next."""
    return any(
        sync.end < change.begin < _promise_after(history, sync)
        for sync in history.syncs
        if line_of(sync.site) == line
        for change in history.changes
    )


def _promise_after(history: History, sync: Sync) -> float:
    return min((mark.at for mark in history.marks if mark.at > sync.end), default=history.end)


def states_without(history: History, changed: History) -> Iterator[tuple[Moment, State]]:
    """Return the states of a changed history in which something is lost that the true one had made durable."""
    durable = [change.durable for change in history.changes]
    for moment in moments(changed):
        extra = frozenset(place for place in moment.pending if durable[place] <= moment.at)
        if not extra:
            continue
        everything = frozenset(moment.pending)
        yield moment, State(everything - extra, "all that it covered is lost")
        yield moment, State(frozenset(), "all is lost")
        for name, places in moment.groups().items():
            if places & extra:
                yield moment, State(everything - places, f"all lost of {name}")
        for place in sorted(extra):
            yield moment, State(everything - {place}, f"lost: {history.changes[place].text}")
            yield moment, State(everything - extra | {place}, f"alone: {history.changes[place].text}")
        for place in sorted(everything - extra):
            yield moment, State(everything - extra - {place}, f"lost as well: {history.changes[place].text}")
