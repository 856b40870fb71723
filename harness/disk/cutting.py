"""Opens each state that a power cut may leave of an operation, and says which of them are wrong."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from harness.disk.observing import Found
from harness.disk.operations import Operation, model_manifest
from harness.disk.power import History, Mark, Moment, State, moments
from harness.disk.processes import scratch
from harness.disk.record import recorded
from luwu.core.manifest import Manifest
from luwu.errors import LuwuError


@dataclass(frozen=True)
class Wrong:
    """A state in which a store is not what the program had promised."""

    operation: str
    state: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.operation}, {self.state}: expected {self.expected}, found {self.found}"


@dataclass
class Report:
    """The states of one operation that were opened; each is another disk than others that must hold the same."""

    operation: str
    states: int = 0
    wrong: list[Wrong] = field(default_factory=list)


class Promises:
    """The contents that a store may have at each moment of an operation, by the marks that the operation made."""

    def __init__(self, operation: Operation, history: History) -> None:
        logging.getLogger("luwu").setLevel(logging.ERROR)  # damage that was met and mended
        self._operation = operation
        self._manifest: Manifest = model_manifest(**operation.settings)
        self._known: dict[str, Found] = {}
        for kind, here in (("is", before_mark), ("may", after_mark)):  # what is true, then what was never said
            for mark in history.marks:
                word, label = mark.text.split(" ", 1)
                if word == kind and label not in self._known:
                    self._known[label] = self._at_step(_step_of(label), here(history, mark), mark)

    def _at_step(self, step: int, candidates: Iterable[Moment], mark: Mark) -> Found:
        """Return what the store held when it stood at a step; an operation may have gone on before it says so."""
        for moment in candidates:
            found = self.observe(moment, State(frozenset(moment.pending), "all is there"))
            if found.step == step:
                return found
        raise AssertionError(f"{self._operation.name} says {mark.text!r} and was never at this step")

    def allowed(self, marks: list[Mark], at: float) -> list[Found]:
        """Return what the store may hold after a power cut: the last that was durable, or what was to come."""
        is_now: list[str] = []
        may: list[str] = []
        for number, mark in enumerate(marks):
            if mark.at > at and number > 0:  # the first one says what was there before, or what is to be made
                break
            kind, label = mark.text.split(" ", 1)
            if kind == "may":
                may.append(label)
                continue
            is_now = [label]
            may = may[may.index(label) + 1 :] if label in may else may
        return [self._known[label] for label in is_now + may]

    def observe(self, moment: Moment, state: State) -> Found:
        """Open one state, and read it."""
        with scratch() as top:
            moment.image(state).write(top)
            return self.open(top)

    def open(self, top: Path) -> Found:
        """Open what an operation left in its folder, and read it."""
        return self._operation.observe(top, self._manifest)

    def problem(self, moment: Moment, state: State, marks: list[Mark]) -> Wrong | None:
        """Open one state; return why it is wrong, if it is."""
        allowed = self.allowed(marks, moment.at)
        try:
            found = self.observe(moment, state)
        except (LuwuError, AssertionError, OSError) as error:
            return self.wrong(f"at {moment.at}, {state.text}", f"{type(error).__name__}: {error}", allowed)
        return None if found in allowed else self.wrong(f"at {moment.at}, {state.text}", str(found), allowed)

    def wrong(self, state: str, found: str, allowed: list[Found]) -> Wrong:
        """Return what is reported of a state."""
        expected = " or ".join(map(str, allowed))
        return Wrong(self._operation.name, state, found, expected)


@cache
def promises_of(name: str) -> Promises:
    """Return what an operation promises, in a process of `recording_pool`."""
    recording = recorded(name)
    return Promises(recording.operation, recording.history)


def before_mark(history: History, mark: Mark) -> Iterator[Moment]:
    """Return the moment of a mark, and those before it, the last one first."""
    yield Moment(history, mark.at)
    yield from (moment for moment in reversed(list(moments(history))) if moment.at < mark.at)


def after_mark(history: History, mark: Mark) -> Iterator[Moment]:
    """Return the moments after a mark."""
    return (moment for moment in moments(history) if moment.at > mark.at)


def _step_of(label: str) -> int:
    return int(label.split()[0])


def different_states(history: History, *, by_chance: int, seed: int) -> Iterator[tuple[Moment, State]]:
    """Return all chosen states of all moments, then some by chance.

    Each makes another disk than those before it that must hold the same.
    """
    seen: set[tuple[int, str]] = set()
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


def cut(name: str, *, by_chance: int, seed: int, share: float = 1.0) -> Report:
    """Record an operation and open the states that a power cut may leave of it, or a share of them, chosen by chance.

    It runs in a process of `recording_pool`.
    """
    history, promises = recorded(name).history, promises_of(name)
    report = Report(name)
    chance = random.Random(seed)
    for moment, state in different_states(history, by_chance=by_chance, seed=seed):
        if chance.random() >= share:
            continue
        report.states += 1
        problem = promises.problem(moment, state, history.marks)
        if problem:
            report.wrong.append(problem)
    return report
