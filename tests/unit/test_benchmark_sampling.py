"""Decisions of benchmarks from samples of two sides, and reports where they cannot decide."""

import json
import math
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from kit.common import BenchmarkError, NotInstalledError, arguments, result, run
from kit.sampling import Bar, Comparison, compare, evidence, in_turn, interval

LEAST = Bar("ours", "peer", 1.5)


class Clock:
    """A clock that a test sets forward."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def options_of(tmp_path, *flags, seconds=40.0):
    options = arguments("", [*flags, "--folder", str(tmp_path)])
    options.seconds_left = lambda: seconds
    return options


def simulate(tmp_path, ratio, bars=(LEAST,), seconds=40.0, flags=("--quick",), rounds=3, drift=lambda now: 1.0):
    """Compare sides whose ratio is drawn by `ratio()`, each round in one second of a machine of speed `drift`."""
    clock = Clock()

    def take_round():
        clock.now += 1.0
        speed = drift(clock.now)
        return {"ours": ratio() * speed, "peer": speed}

    return compare(options_of(tmp_path, *flags, seconds=seconds), take_round, bars, rounds=rounds, clock=clock)


def noisy(median, spread, seed=1):
    generator = random.Random(seed)
    return lambda: median * math.exp(generator.gauss(0.0, spread))


def test_a_side_that_is_clearly_ahead_meets_the_bar_within_a_few_rounds(tmp_path):
    found = simulate(tmp_path, noisy(2.0, 0.03))
    assert found.ok is True
    assert len(found.rounds) == 5
    low, high = found.details()["bars"]["ours / peer"]["between"]
    assert 1.5 < low < 2.0 < high


def test_a_side_that_is_clearly_behind_misses_the_bar_within_a_few_rounds(tmp_path):
    found = simulate(tmp_path, noisy(1.2, 0.03))
    assert found.ok is False
    assert len(found.rounds) == 5


def test_a_bar_that_must_not_be_exceeded_is_read_the_other_way_round(tmp_path):
    most = Bar("ours", "peer", 1.5, at_least=False)
    assert simulate(tmp_path, noisy(1.2, 0.03), [most]).ok is True
    assert simulate(tmp_path, noisy(2.0, 0.03), [most]).ok is False


def test_what_lies_at_the_bar_is_not_decided_when_time_is_over(tmp_path):
    found = simulate(tmp_path, noisy(1.5, 0.2), seconds=20.0)
    assert found.ok is None
    assert len(found.rounds) == 20


def test_a_wild_sample_does_not_turn_the_verdict(tmp_path):
    ratios = iter([0.1, *[2.0] * 30])
    assert simulate(tmp_path, lambda: next(ratios)).ok is True


def test_a_machine_that_drifts_changes_nothing(tmp_path):
    """The machine's speed changes several times over, so one side alone would cross the bar."""
    slower = [simulate(tmp_path, noisy(2.0, 0.03), drift=lambda now: math.exp(-now / 3)) for _ in range(2)]
    assert [found.ok for found in slower] == [True, True]
    assert simulate(tmp_path, noisy(1.2, 0.03), drift=lambda now: math.exp(now / 3)).ok is False


@pytest.mark.parametrize("bars", [1, 4])
def test_a_wrong_verdict_is_as_rare_as_said(tmp_path, bars):
    """The medians are just on one side of the bar, where a verdict is hardest, and there may be sixty rounds."""
    wrong = {True: 0, False: 0}
    trials = 200
    for seed in range(trials):
        generator = random.Random(seed)
        for truth, median in ((True, 1.5001), (False, 1.4999)):
            comparison = Comparison([Bar(f"ours {number}", "peer", 1.5) for number in range(bars)], family=bars)
            while comparison.ok is None and len(comparison.rounds) < 60:
                sides = {f"ours {number}": median * math.exp(generator.gauss(0, 0.5)) for number in range(bars)}
                comparison.add({**sides, "peer": 1.0})
            wrong[truth] += comparison.ok is not None and comparison.ok != truth
    assert wrong[True] <= 0.05 * trials + 3 * math.sqrt(0.05 * 0.95 * trials)
    assert wrong[False] <= 0.05 * trials + 3 * math.sqrt(0.05 * 0.95 * trials)


def test_the_evidence_is_a_fair_bet():
    """The mean of the evidence over all outcomes of the rounds, which are equally likely, is the stake."""
    for rounds in range(1, 12):
        mean = sum(math.comb(rounds, agree) * evidence(agree, rounds) for agree in range(rounds + 1)) / 2**rounds
        assert mean == pytest.approx(1.0)
    assert evidence(5, 5) > 20 > evidence(4, 4)


def test_too_few_rounds_bound_nothing():
    assert interval([2.0] * 4) == (-math.inf, math.inf)
    assert interval([2.0, 2.1, 2.2, 1.9, 1.8]) == (1.8, 2.2)


def test_no_round_begins_that_would_end_too_late(tmp_path):
    clock = Clock()

    def take_round():
        clock.now += 8.0
        return {"ours": 1.5, "peer": 1.0}

    found = compare(options_of(tmp_path, "--quick", seconds=20.0), take_round, [LEAST], rounds=3, clock=clock)
    assert clock.now == 16.0 and len(found.rounds) == 2


def test_a_full_run_takes_its_rounds_and_decides_by_the_median(tmp_path):
    ratios = iter([1.4, 1.6, 1.7])
    found = simulate(tmp_path, lambda: next(ratios), flags=())
    assert found.ok is True and len(found.rounds) == 3


def test_sides_are_sampled_in_turn():
    taken = []
    sides = {name: lambda name=name: taken.append(name) or 1.0 for name in ("a", "b")}
    take_round = in_turn(sides)
    assert take_round() == {"a": 1.0, "b": 1.0}
    take_round()
    assert taken == ["a", "b", "a", "b"]


def finish(capsys, options, measure):
    status = run("name", "bar", "s", measure, options)
    return status, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    ("flags", "ok", "right", "expected", "status"),
    [
        ((), True, True, True, 0),
        ((), False, True, False, 1),
        (("--quick",), True, True, None, 0),
        (("--quick",), False, True, None, 0),
        (("--quick",), True, False, False, 1),
        (("--check",), False, True, None, 0),
        (("--check",), True, False, False, 1),
    ],
)
def test_sizes_that_are_not_the_bars_decide_nothing_but_what_is_wrong_at_any(
    tmp_path, capsys, flags, ok, right, expected, status
):
    options = options_of(tmp_path, *flags)
    options.size(8, quick=2, check=1)

    def measure():
        return result("name", ours=1.0, peer=1.0, bar="bar", ok=ok, right=right, unit="s")

    assert finish(capsys, options, measure)[0] == status
    assert finish(capsys, options, measure)[1]["ok"] is expected


def test_quick_decides_where_it_keeps_the_bars_sizes(tmp_path, capsys):
    options = options_of(tmp_path, "--quick")
    assert (options.size(8, check=1), options.effort(9, quick=3, check=1)) == (8, 3)

    def measure():
        return result("name", ours=1.0, peer=1.0, bar="bar", ok=True, unit="s")

    assert finish(capsys, options, measure)[1]["ok"] is True


def test_what_is_not_installed_fails_a_measurement_and_is_left_out_of_a_check(tmp_path, capsys):
    def measure():
        raise NotInstalledError("fio is not installed")

    status, found = finish(capsys, options_of(tmp_path), measure)
    assert (status, found["ok"]) == (1, False)
    status, found = finish(capsys, options_of(tmp_path, "--check"), measure)
    assert (status, found["ok"], found["left_out"]) == (0, None, ["fio is not installed"])


def test_a_side_that_fails_fails_a_check(tmp_path, capsys):
    def measure():
        raise BenchmarkError("the server ended with 1")

    status, found = finish(capsys, options_of(tmp_path, "--check"), measure)
    assert (status, found["ok"]) == (1, False)
