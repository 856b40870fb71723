"""Samples the sides of a comparison in turn until the bar is decided.

The method is a sign test that may be looked at after every round. In a round every side is sampled once, so both sides
of a ratio see the same moment of a machine that drifts. Suppose that the median of the ratios misses the bar: then each
round meets it with a chance of at most one half, whatever the distribution. The evidence against this supposition is a
bet on each round, which starts with a stake of 1 and, while the supposition holds, ever reaches 20 with a chance of at
most 5 % (Ville's inequality for martingales). Half of the stake bets that all rounds meet the bar, the other half bets
on every chance between one half and one alike.

A bar is met when this evidence reaches 20. The other way round, a bar is missed when the evidence against meeting it
reaches 20 times the number of bars. So for all bars of a program together the chance of a wrong verdict is at most 5 %,
provided that a round's chance does not depend on earlier rounds. A verdict takes five rounds that agree, or twelve of
which one does not.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit.common import Options, all_of

ERROR_RATE = 0.05
Round = Mapping[str, float]


@dataclass(frozen=True)
class Bar:
    """The median of `over` / `under` is to be at least, or at most, `limit`."""

    over: str
    under: str
    limit: float
    at_least: bool = True

    @property
    def name(self) -> str:
        """The bar's name in tables and details."""
        return f"{self.over} / {self.under}"

    def ratio(self, values: Round) -> float:
        """Return the ratio of one round."""
        return values[self.over] / values[self.under]

    def met_by(self, ratio: float) -> bool:
        """Tell whether a ratio is on the right side, the limit included."""
        return ratio >= self.limit if self.at_least else ratio <= self.limit


def in_turn(sides: Mapping[str, Callable[[], float]]) -> Callable[[], dict[str, float]]:
    """A round that samples every side once."""
    return lambda: {name: measure() for name, measure in sides.items()}


def evidence(agreeing: int, rounds: int) -> float:
    """Evidence against the supposition that a round agrees with a chance of at most one half."""
    all_agree = 2.0**rounds if agreeing == rounds else 0.0
    ways = sum(math.comb(rounds + 1, count) for count in range(agreeing + 1))
    any_chance = ways / ((rounds + 1) * math.comb(rounds, agreeing))
    return (all_agree + any_chance) / 2


def interval(ratios: Sequence[float], error_rate: float = ERROR_RATE) -> tuple[float, float]:
    """Bounds of the median, each wrong with at most this chance; infinite where there are too few ratios."""
    rounds, ordered = len(ratios), sorted(ratios)
    needed = next((count for count in range(rounds + 1) if evidence(count, rounds) >= 1 / error_rate), None)
    if needed is None:
        return -math.inf, math.inf
    return ordered[rounds - needed], ordered[needed - 1]


@dataclass
class Comparison:
    """Rounds of samples and what they decide. `ok` is None while a bar is neither met nor missed."""

    bars: Sequence[Bar]
    family: int = 1  # bars of all comparisons that make one verdict together
    rounds: list[dict[str, float]] = field(default_factory=list)
    ok: bool | None = None
    _decided: dict[Bar, bool] = field(default_factory=dict)

    def add(self, values: Round) -> None:
        """Takes a round. A bar that is decided stays so: the error rate holds for the first decision."""
        self.rounds.append(dict(values))
        for bar in self.bars:
            if bar not in self._decided:
                met = sum(bar.met_by(bar.ratio(found)) for found in self.rounds)
                if evidence(met, len(self.rounds)) >= 1 / ERROR_RATE:
                    self._decided[bar] = True
                elif evidence(len(self.rounds) - met, len(self.rounds)) >= self.family / ERROR_RATE:
                    self._decided[bar] = False
        self.ok = all_of(*(self._decided.get(bar) for bar in self.bars))

    def conclude(self) -> None:
        """Decides by the medians alone, after the number of rounds that a full run takes."""
        self.ok = all(bar.met_by(self.ratio(bar)) for bar in self.bars)

    @property
    def medians(self) -> dict[str, float]:
        """The median of every side."""
        return {name: statistics.median(found[name] for found in self.rounds) for name in self.rounds[0]}

    def ratio(self, bar: Bar) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(bar.ratio(found) for found in self.rounds)

    def details(self) -> dict[str, Any]:
        """The result's details: each bar's median ratio and its bounds."""
        found = {}
        for bar in self.bars:
            low, high = interval([bar.ratio(values) for values in self.rounds])
            bounds = [bound if math.isfinite(bound) else None for bound in (low, high)]
            limit = {"least" if bar.at_least else "most": bar.limit}
            found[bar.name] = {"ratio": self.ratio(bar), "between": bounds, **limit, "met": self._decided.get(bar)}
        return {"rounds": len(self.rounds), "ok": self.ok, "bars": found}


def compare(
    options: Options, take_round: Callable[[], Round], bars: Sequence[Bar], *, rounds: int, family: int | None = None,
    share: float = 1.0, clock: Callable[[], float] = time.monotonic,
) -> Comparison:  # fmt: skip
    """Takes `rounds` samples in a full run, one with --check, and with --quick as many as it takes to decide `ok`.

    `family`: the number of bars of all comparisons that make the program's verdict (those given). `share`: the part of
    the time that is left which --quick may take for this one.
    """
    comparison = Comparison(bars, family or max(1, len(bars)))
    if not options.quick:
        for _ in range(options.effort(rounds, check=1)):
            comparison.add(take_round())
        comparison.conclude()
        return comparison
    began = clock()
    ends, before = began + share * options.seconds_left(), began
    while True:
        comparison.add(take_round())
        now = clock()
        if comparison.ok is not None or now + (now - before) > ends:
            return comparison
        before = now
