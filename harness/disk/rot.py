"""Judges what becomes of a store with damage: each is to be noticed by name, or harmless."""

from __future__ import annotations

import enum
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.disk.damages import Damage
from harness.disk.looking import WRITING, Seen, Way, look
from harness.disk.rotten_stores import Subject, contents_of


class Verdict(enum.IntEnum):
    """Result of a damage, the worst last.

    HARMLESS: everything shows the same. NOTICED: an error, a warning or a finding names the file, and what is shown is
    the same or the step before. UNNAMED: it was refused, and the message names another file, or the error has no type.
    SILENT: something shows other than was written. FRESH: the store counts as one without values.
    """

    HARMLESS = 0
    NOTICED = 1
    UNNAMED = 2
    SILENT = 3
    FRESH = 4


@dataclass
class Tally:
    """Verdicts of damages by their kind, and what the bad ones were."""

    counts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)

    def add(self, kind: str, verdict: Verdict, text: str) -> None:
        """Count one damage."""
        self.counts.setdefault(kind, Counter())[verdict] += 1
        if verdict >= Verdict.UNNAMED:
            self.bad.append(f"{verdict.name.lower()}: {text}")

    def join(self, other: Tally) -> None:
        """Add what another one counted."""
        for kind, counts in other.counts.items():
            self.counts.setdefault(kind, Counter()).update(counts)
        self.bad += other.bad

    def total(self, verdict: Verdict) -> int:
        """Number of damages of all kinds that had this verdict."""
        return sum(counts[verdict] for counts in self.counts.values())


def try_all(subject: Subject, found: Iterable[Damage], tally: Tally) -> None:
    """Judge damages one after the other, and count them."""
    for damage in found:
        verdict, why = judge(subject, damage)
        tally.add(damage.kind, verdict, why)
    if contents_of(subject.top) != subject.now:
        raise AssertionError(f"{subject.name} is not whole again")


def judge(subject: Subject, damage: Damage) -> tuple[Verdict, str]:
    """Damage a store, look at it, and make it whole again; returns the verdict, and what brought it about."""
    worst, why = Verdict.HARMLESS, ""
    paths = [path for path, _, _ in damage.patches]
    _apply(subject, damage)
    for name, way in _ways(subject, damage).items():
        seen = look(way)
        verdict = judge_seen(subject, name, seen, paths)
        if verdict > worst:
            worst, why = verdict, f"{name}: {seen.said or seen.shown}"
        if name in WRITING:
            subject.put_back()
            _apply(subject, damage)
    for path, offset, data in damage.patches:
        _write(subject, path, offset, subject.now[path][offset : offset + len(data)])
    place = ", ".join(f"{path} at {offset}" for path, offset, _ in damage.patches)
    return worst, f"{subject.name}, {damage.kind}, {place}: {why}"


def judge_seen(subject: Subject, name: str, seen: Seen, paths: Iterable[str]) -> Verdict:
    """Judge what one way shows of a store with damage to some files."""
    named = any(str(subject.top / same) in seen.said for path in paths for same in subject.names[path])
    if seen.empty:
        return Verdict.FRESH
    if seen.shown is None:
        return Verdict.NOTICED if seen.typed and named else Verdict.UNNAMED
    if seen.shown == subject.intact[name].shown:
        return Verdict.NOTICED if named else Verdict.HARMLESS
    return Verdict.NOTICED if named and seen.shown in subject.allowed[name] else Verdict.SILENT


def _ways(subject: Subject, damage: Damage) -> dict[str, Way]:
    if damage.deep:
        return subject.ways
    if "/model/" in damage.patches[0][0]:
        return {"model": subject.ways["model"]}
    inside = re.search(r"/snapshots/(\d+)/", damage.patches[0][0])
    name = f"snapshot {inside[1]}" if inside else "chunks"
    return {name: subject.quick_ways[name]}


def _apply(subject: Subject, damage: Damage) -> None:
    for path, offset, data in damage.patches:
        _write(subject, path, offset, data)


def _write(subject: Subject, path: str, offset: int, data: bytes) -> None:
    file = os.open(subject.top / path, os.O_WRONLY)
    try:
        os.pwrite(file, data, offset)
    finally:
        os.close(file)
