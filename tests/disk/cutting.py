"""Opens each state that a power cut may leave of an operation, and says which of them are wrong."""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.disk.observing import Found
from tests.disk.operations import Operation, model_manifest
from tests.disk.power import History, Moment, State, Sync, moments
from tests.disk.sites import line_of

from luwu.errors import LuwuError
from luwu.store.manifest import Manifest


@dataclass(frozen=True)
class Wrong:
    """A state that a power cut may leave and that is not what the program had promised."""

    operation: str
    at: float
    state: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.operation}, at {self.at}, {self.state}: expected {self.expected}, found {self.found}"


@dataclass
class Report:
    """The states of one operation that were opened; each is another disk than all others."""

    operation: str
    states: int = 0
    wrong: list[Wrong] = field(default_factory=list)


class Cutter:
    """Cuts the power of one recorded operation, as often as is asked, in a scratch folder."""

    def __init__(self, operation: Operation, history: History, scratch: Path) -> None:
        logging.getLogger("luwu").setLevel(logging.ERROR)  # damage that was met and mended
        self.operation = operation
        self.history = history
        self._scratch = scratch
        self._manifest: Manifest = model_manifest(**operation.settings)
        self._known: dict[str, Found] = {}
        for mark in history.marks:
            kind, label = mark.text.split(" ", 1)
            if kind == "is" and label not in self._known:
                moment = Moment(history, mark.at)
                self._known[label] = self._observe(moment, State(frozenset(moment.pending), "all is there"))
                if str(self._known[label].step) != label.split()[0]:
                    raise AssertionError(f"{operation.name} says {mark.text!r} and holds {self._known[label]}")

    def allowed(self, at: float) -> list[Found]:
        """Return what the store may hold after a power cut: the last that was durable, or what was to come."""
        is_now: list[str] = []
        may: list[str] = []
        for number, mark in enumerate(self.history.marks):
            if mark.at > at and number > 0:  # the first one says what was there before, or what is to be made
                break
            kind, label = mark.text.split(" ", 1)
            if kind == "may":
                may.append(label)
                continue
            is_now = [label]
            may = may[may.index(label) + 1 :] if label in may else may
        return [self._known[label] for label in is_now + may]

    def check(self, moment: Moment, state: State) -> Wrong | None:
        """Open one state; return why it is wrong, if it is."""
        allowed = self.allowed(moment.at)
        try:
            found = self._observe(moment, state)
        except (LuwuError, AssertionError, OSError) as error:
            return self._wrong(moment, state, f"{type(error).__name__}: {error}", allowed)
        return None if found in allowed else self._wrong(moment, state, str(found), allowed)

    def _observe(self, moment: Moment, state: State) -> Found:
        top = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            moment.image(state).write(top)
            return self.operation.observe(top, self._manifest)
        finally:
            shutil.rmtree(top)

    def _wrong(self, moment: Moment, state: State, found: str, allowed: list[Found]) -> Wrong:
        expected = " or ".join(map(str, allowed))
        return Wrong(self.operation.name, moment.at, state.text, found.replace(str(self._scratch), ""), expected)


def different_states(history: History, *, by_chance: int, seed: int) -> Iterator[tuple[Moment, State]]:
    """Return all chosen states of all moments, then some by chance; each makes another disk than those before."""
    seen: set[tuple[float, str]] = set()
    all_moments = list(moments(history))
    chance = random.Random(seed)

    def random_states() -> Iterator[tuple[Moment, State]]:
        busy = [moment for moment in all_moments if moment.pending]
        for _ in range(by_chance):
            moment = chance.choice(busy)
            yield moment, moment.random_state(chance)

    chosen = ((moment, state) for moment in all_moments for state in moment.chosen_states())
    for moment, state in itertools.chain(chosen, random_states()):
        key = moment.promise, moment.image(state).digest()
        if key not in seen:
            seen.add(key)
            yield moment, state


def without(history: History, line: str) -> History:
    """Return the history as if the syncs of one place were not there."""
    return history.with_syncs(lambda sync: None if line_of(sync.site) == line else sync)


def later(history: History, line: str) -> History:
    """Return the history as if the syncs of one place came as late as they may, just before the next promise."""

    def moved(sync: Sync) -> Sync:
        if line_of(sync.site) != line:
            return sync
        promise = min((mark.at for mark in history.marks if mark.at > sync.end), default=history.end)
        return replace(sync, end=promise - 0.25)

    return history.with_syncs(moved)


def earlier(history: History, line: str) -> History:
    """Return the history as if the syncs of one place did not wait for the last change before them."""
    covered: dict[tuple[int, float], int] = {}
    for change in history.changes:
        key = change.number, change.durable
        covered[key] = max(covered.get(key, 0), change.end)

    def moved(sync: Sync) -> Sync:
        last = covered.get((sync.number, sync.end))
        return replace(sync, begin=last) if line_of(sync.site) == line and last is not None else sync

    return history.with_syncs(moved)


def states_without(history: History, changed: History) -> Iterator[tuple[Moment, State]]:
    """Return the states of a changed history in which something is lost that the true one had made durable."""
    durable = {place: change.durable for place, change in enumerate(history.changes)}
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
