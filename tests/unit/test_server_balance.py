"""Division of batches by speed: the best one, the same for all workers, and changed only where that pays."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from luwu.core.shares import even_counts, even_share, is_even
from luwu.errors import ConfigError
from luwu.server.balance import HELD_ATTEMPTS, LEAST_GAIN, SETTLING_ATTEMPTS, Balance, RunBalance, divide_rows


def slowest(counts: list[int], costs: list[float]) -> float:
    return max(count * cost for count, cost in zip(counts, costs, strict=True))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_the_division_is_the_one_whose_slowest_worker_ends_first(workers: int) -> None:
    draw = random.Random(workers)
    for _ in range(100):
        rows = draw.randint(workers, 12)
        costs = [draw.choice([0.01, 0.5, 1.0, 1.5, 3.0, 40.0]) for _ in range(workers)]
        every = [counts for counts in itertools.product(range(1, rows + 1), repeat=workers) if sum(counts) == rows]
        counts = divide_rows(rows, costs)
        assert sum(counts) == rows and min(counts) >= 1
        assert slowest(counts, costs) == min(slowest(list(found), costs) for found in every), (rows, costs, counts)


def test_many_rows_are_divided_at_once() -> None:
    assert divide_rows((1 << 32) - 4, [1.0, 3.0]) == [3 * ((1 << 30) - 1), (1 << 30) - 1]
    assert sum(divide_rows((1 << 32) - 1, [1e-6] * 999 + [1e9])) == (1 << 32) - 1


def test_fewer_rows_than_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="rows: expected one for each of 3 workers at least, found 2; use a larger"):
        divide_rows(2, [1.0, 1.0, 1.0])


class Run:
    """Workers that take an overhead and a cost for each row, and ask in a random order."""

    def __init__(self, costs: list[float], overhead: float = 0.0, noise: float = 0.0) -> None:
        self.costs, self.overhead, self.noise = costs, overhead, noise
        self.draw = random.Random(7)
        self.balance = Balance(len(costs))
        self.seconds = [0.0] * len(costs)

    def attempt(self, number: int, rows: int) -> list[int]:
        answers = []
        for rank in self.draw.sample(range(len(self.costs)), len(self.costs)):
            self.balance.hear(rank, number - 1, self.seconds[rank])
            answers.append(self.balance.divide(number, rows))
        assert all(answer == answers[0] for answer in answers)
        for rank, count in enumerate(answers[0]):
            factor = 1 + self.noise * self.draw.uniform(-1, 1)
            self.seconds[rank] = (self.overhead + count * self.costs[rank]) * factor
        return list(answers[0])


@pytest.mark.parametrize("overhead", [0.0, 0.5])
@pytest.mark.parametrize(
    ("costs", "rows"), [([1.0, 3.0], 16), ([1.0, 1.0, 2.0, 5.0], 64), ([3.0, 1.0], 4), ([0.1, 1.0], 256)]
)
def test_all_finish_together_soon(costs: list[float], rows: int, overhead: float) -> None:
    run = Run(costs, overhead, noise=0.02)
    for number in range(30):
        counts = run.attempt(number, rows)
    best = min(
        slowest(list(found), costs)
        for found in (divide_rows(rows, [cost * scale for cost, scale in zip(costs, scales, strict=True)])
                      for scales in itertools.product([0.9, 0.95, 1.0, 1.05, 1.1], repeat=len(costs)))
    )  # fmt: skip
    assert slowest(counts, costs) <= best * (1 + 2 * LEAST_GAIN)


def test_an_even_division_stays_until_every_worker_has_made_some_attempts() -> None:
    run = Run([1.0, 3.0])
    assert [run.attempt(number, 16) for number in range(SETTLING_ATTEMPTS)] == [[8, 8]] * SETTLING_ATTEMPTS
    assert run.attempt(SETTLING_ATTEMPTS, 16) == [8, 8]  # the others have not told of the last one yet
    assert run.attempt(SETTLING_ATTEMPTS + 1, 16) == [12, 4]


def test_equal_workers_keep_the_even_division() -> None:
    run = Run([1.0, 1.0, 1.0], noise=0.04)
    assert all(run.attempt(number, 96) == [32, 32, 32] for number in range(300))


def test_one_slow_attempt_changes_nothing() -> None:
    run = Run([1.0, 1.0])
    for number in range(8):
        assert run.attempt(number, 16) == [8, 8]
    run.seconds[0] = 100.0
    assert [run.attempt(number, 16) for number in range(8, 12)] == [[8, 8]] * 4


def test_a_time_counts_once_however_often_it_is_told() -> None:
    balance = Balance(2)
    assert balance.divide(0, 16) == [8, 8]
    for _ in range(3 * SETTLING_ATTEMPTS):  # the attempt is void, and made again
        for rank in range(2):
            balance.hear(rank, 0, 1.0 + 2 * rank)
            assert balance.divide(1, 16) == [8, 8]
    assert balance.divide(2, 16) == [8, 8]


@pytest.mark.parametrize("seconds", [[1.0, 1.12], [1.0, 2.0], [5.0, 1.0, 1.0]])
def test_a_division_that_gains_nothing_is_taken_back(seconds: list[float]) -> None:
    """The time of a worker does not depend on its rows at all."""
    balance, even = Balance(len(seconds)), [32] * len(seconds)
    found = []
    for number in range(HELD_ATTEMPTS):
        for rank, time in enumerate(seconds):
            balance.hear(rank, number - 1, time)
            division = balance.divide(number, 32 * len(seconds))
        found.append(division)
    changed = [number for number, division in enumerate(found) if division != even]
    assert changed == list(range(changed[0], changed[-1] + 1)) and len(changed) <= SETTLING_ATTEMPTS + 2


def test_a_worker_that_becomes_slow_while_no_change_is_made_gets_less_at_once() -> None:
    run = Run([0.0, 0.01], overhead=1.0)
    for number in range(30):
        run.attempt(number, 16)
    run.costs, run.overhead = [1.0, 3.0], 0.0
    for number in range(30, 60):
        counts = run.attempt(number, 16)
    assert counts == [12, 4]


def test_speeds_that_hardly_differ_are_not_followed_when_batches_change() -> None:
    run = Run([1.0, 1.0], noise=0.03)
    assert all(run.attempt(number, 96 if number % 5 else 80)[0] in (48, 40) for number in range(100))


def test_a_worker_that_becomes_slow_gets_less() -> None:
    run = Run([1.0, 1.0])
    for number in range(20):
        run.attempt(number, 16)
    run.costs[0] = 3.0
    for number in range(20, 40):
        counts = run.attempt(number, 16)
    assert counts == [4, 12]


def test_times_of_a_lost_worker_do_not_count_for_the_next_one() -> None:
    run = Run([1.0, 3.0])
    for number in range(10):
        counts = run.attempt(number, 16)
    assert counts == [12, 4]
    run.balance.forget(1)
    run.costs[1], run.seconds[1] = 1.0, 0.0
    assert run.attempt(10, 16) == [12, 4]  # until it has times of its own
    for number in range(11, 20):
        counts = run.attempt(number, 16)
    assert counts == [8, 8]


def test_speeds_hold_for_batches_of_other_sizes() -> None:
    run = Run([1.0, 3.0])
    for number in range(10):
        run.attempt(number, 16)
    assert [run.attempt(10, 8), run.attempt(11, 16)] == [[6, 2], [12, 4]]


def test_an_attempt_that_is_made_again_has_the_same_division() -> None:
    balance = Balance(2)
    for number in range(5):
        for rank in range(2):
            balance.hear(rank, number - 1, 1.0 + 2 * rank)
            before = balance.divide(number, 16)
    balance.hear(0, 3, 50.0)
    balance.hear(1, 3, 50.0)
    assert balance.divide(4, 16) == before


def test_questions_that_do_not_fit_are_refused() -> None:
    balance = RunBalance()
    assert balance.divide(0, 2, 5, 16, 0.0) == [8, 8]
    with pytest.raises(ConfigError, match="rows: expected 16, as another worker has for this attempt, found 8"):
        balance.divide(1, 2, 5, 8, 0.0)
    with pytest.raises(ConfigError, match="attempt: expected 5 or a later one, found 4, which is over"):
        balance.divide(1, 2, 4, 16, 0.0)
    for seconds in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ConfigError, match="seconds: expected a time of 0 or more"):
            balance.divide(1, 2, 6, 16, seconds)


def test_any_times_give_every_worker_a_row_and_all_the_same_division() -> None:
    draw = random.Random(3)
    for _ in range(300):
        workers = draw.randint(1, 5)
        balance = Balance(workers)
        attempt, answers_to, rows = draw.randint(0, 9), -1, 16
        for _ in range(30):
            rows = draw.choice([workers, 16, 17]) if answers_to != attempt else rows
            answers_to, answers = attempt, []
            for rank in draw.sample(range(workers), workers):
                balance.hear(rank, attempt - 1, draw.choice([0.0, 5e-324, 1e-3, 1.0, 1e300]))
                answers.append(list(balance.divide(attempt, rows)))
            assert all(answer == answers[0] for answer in answers)
            assert sum(answers[0]) == rows and min(answers[0]) >= 1
            if draw.random() < 0.1:
                balance.forget(draw.randrange(workers))
            attempt += draw.random() < 0.9


def test_the_time_of_a_share_counts_without_waits() -> None:
    from luwu.session.batch_share import BatchShare, WorkTimer

    timer = WorkTimer()
    timer.end(5.0, 1.0)
    assert timer.seconds == 0.0
    timer.begin(10.0, 1.0)
    timer.end(14.0, 2.5)
    assert timer.seconds == 2.5
    timer.end(20.0, 2.5)
    assert timer.seconds == 0.0  # that attempt was not begun
    timer.begin(20.0, 2.5)
    timer.drop()
    assert timer.seconds == 0.0
    shares = [BatchShare.of([12, 4], rank) for rank in range(2)]
    assert [share.rows for share in shares] == [slice(0, 12), slice(12, 16)]
    assert [share.weight for share in shares] == [1.5, 0.5]
    assert statistics.mean(share.weight for share in shares) == 1.0


@pytest.mark.parametrize(("count", "workers"), [(7, 2), (16, 3), (3, 3), (8, 2), (1000, 7)])
def test_an_even_division_is_that_of_a_run_without_balance(count: int, workers: int) -> None:
    counts = even_counts(count, workers)
    parts = [list(range(count))[even_share(count, rank, workers)] for rank in range(workers)]
    assert [len(part) for part in parts] == counts == divide_rows(count, [0.3] * workers)
    assert [row for part in parts for row in part] == list(range(count)) and is_even(counts)
    assert len(set(counts)) == 1 or not is_even(sorted(counts, reverse=True))
