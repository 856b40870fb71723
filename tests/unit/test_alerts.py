"""Alerts, by tables: what happens goes in, and the alerts that are raised and cleared come out."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import pytest

from luwu.core.durability import EACH_STEP, CommitPoints
from luwu.observe.alerts import (
    DISK_FULL,
    LAGGING,
    MEANINGS,
    NOT_DURABLE,
    NOT_FINITE,
    RISING,
    SLOW_STEPS,
    VALIDATION_RISING,
    Alerts,
    Change,
)
from luwu.observe.meter import StepRecord

GB, TB = 10**9, 10**12
NAN = math.nan


def attempt(
    loss: float = 2.0, seconds: float = 1.0, *, step: int = 1, committed: bool = True, validation: float | None = None
) -> StepRecord:
    return StepRecord(
        step=step, attempt=0, committed=committed, loss=loss, lr=1e-3, grad_norm=None, tokens=1, seconds=seconds,
        tokens_per_second=1.0, hidden=1.0, bytes_pulled=0, bytes_pushed=0, validation_loss=validation,
    )  # fmt: skip


def states(changes: Iterable[Change]) -> list[tuple[str, str]]:
    return [(change.name, change.state) for change in changes]


def after_attempts(records: Sequence[StepRecord]) -> list[tuple[int, str, str]]:
    """Return the changes, each with the number of the record that brought it."""
    alerts = Alerts(EACH_STEP)
    return [
        (number, *change) for number, record in enumerate(records) for change in states(alerts.attempt(record))
    ]  # fmt: skip


def losses(*runs: tuple[float, int]) -> list[StepRecord]:
    """Return records of losses, each so many times, with a little noise."""
    values = [loss for loss, times in runs for _ in range(times)]
    return [attempt(loss + 0.01 * (-1) ** number) for number, loss in enumerate(values)]


def noise(times: int) -> list[StepRecord]:
    """Return records of a loss that neither falls nor rises, with the noise of small batches."""
    chance = random.Random(1)
    return [attempt(2.0 * math.exp(chance.gauss(0.0, 0.2))) for _ in range(times)]


@pytest.mark.parametrize(
    "records, expected",
    [
        ([attempt(2.0), attempt(NAN), attempt(math.inf), attempt(NAN)], [(1, NOT_FINITE, "raised")]),
        (  # two in twenty attempts are one alert
            [attempt(NAN), *losses((2.0, 10)), attempt(NAN), *losses((2.0, 25))],
            [(0, NOT_FINITE, "raised"), (31, NOT_FINITE, "cleared")],
        ),
        (  # losses are finite, and a validation is not until the last record
            [attempt(validation=NAN), *losses((2.0, 30)), attempt(validation=2.0), attempt()],
            [(0, NOT_FINITE, "raised"), (32, NOT_FINITE, "cleared")],
        ),
        (losses((5.0, 10), (2.0, 100)), []),
        (losses((2.0, 40), (2.1, 40)), []),  # less than a tenth
        (losses((2.0, 40), (3.0, 9), (2.0, 40)), []),  # fewer than half of the last twenty
        (
            losses((2.0, 40), (3.0, 40), (2.0, 40), (2.1, 20)),
            [(49, RISING, "raised"), (90, RISING, "cleared")],
        ),
        ([attempt(3.0 + 1.5 * math.sin(number)) for number in range(300)], []),  # noise alone
        (noise(2000), []),  # the lowest of many medians of 20 is far below the others
        ([*noise(2000), *(attempt(2 * each.loss) for each in noise(40))], [(2009, RISING, "raised")]),
        (  # attempts that were rolled back do not count
            [*losses((2.0, 40)), *(attempt(3.0, committed=False) for _ in range(40))],
            [],
        ),
        (
            [attempt(validation=loss) for loss in (3.0, 2.0, 2.2, 2.05, 2.2, 2.2, 2.3, 2.08, 2.02)],
            [(5, VALIDATION_RISING, "raised"), (8, VALIDATION_RISING, "cleared")],
        ),
    ],
)  # fmt: skip
def test_losses(records: list[StepRecord], expected: list[tuple[int, str, str]]) -> None:
    assert after_attempts(records) == expected


@pytest.mark.parametrize(
    "seconds, expected",
    [
        ([5.0] * 9 + [20.0] * 3, []),  # the usual pace is not known yet
        ([5.0] * 20 + [11.0] * 2 + [5.0] * 5, []),  # not enough in a row
        ([5.0] * 20 + [9.0] * 50, []),  # less than twice
        (
            [5.0] * 20 + [11.0] * 200 + [9.0] * 20 + [6.0] * 5,  # slow steps do not become the usual ones
            [(22, SLOW_STEPS, "raised"), (242, SLOW_STEPS, "cleared")],
        ),
        ([0.1] * 20 + [0.3] * 20, []),  # short steps vary: not ten seconds together
        ([0.1] * 20 + [0.3] * 40, [(53, SLOW_STEPS, "raised")]),
    ],
)
def test_slow_steps(seconds: list[float], expected: list[tuple[int, str, str]]) -> None:
    assert after_attempts([attempt(seconds=each) for each in seconds]) == expected


@pytest.mark.parametrize(
    "free, expected",
    [
        ([TB] * 200, []),
        ([TB - 200 * GB * number for number in range(3)], []),  # too short to know a rate
        (  # a hundred seconds apart: full in an hour from the fourth look on, then it stands still
            [500 * GB - 15 * GB * min(number, 8) for number in range(30)],
            [(300, "raised"), (1200, "cleared")],
        ),
        ([5 * GB, GB // 2, 15 * GB // 10, GB // 2, 5 * GB], [(100, "raised"), (400, "cleared")]),
    ],
)
def test_a_disk_that_fills(free: list[int], expected: list[tuple[int, str]]) -> None:
    alerts = Alerts(EACH_STEP)
    found = [
        (100 * number, change.state)
        for number, each in enumerate(free)
        for change in alerts.disk("/nvme0", 100.0 * number, each, TB)
    ]
    assert found == expected


def test_several_disks_share_an_alert() -> None:
    alerts = Alerts(EACH_STEP)
    looks = [("/a", 1), ("/b", 1), ("/a", TB), ("/c", TB), ("/b", TB)]
    found = [states(alerts.disk(folder, 0.0, free, TB)) for folder, free in looks]
    assert found == [[(DISK_FULL, "raised")], [], [], [], [(DISK_FULL, "cleared")]]


def test_a_worker_that_lags() -> None:
    alerts = Alerts(EACH_STEP)
    looks = [(0, 0), (50, 50), (60, 60), (90, 90), (91, 0), (140, 40), (160, 60), (161, 0), (219, 50), (220, 0)]
    found = [(now, *each) for now, seconds in looks for each in alerts.behind(now, {"0": 0.0, "1": seconds})]
    assert [(now, name, raised) for now, name, raised, _ in found] == [(60, LAGGING, True), (220, LAGGING, False)]
    assert "worker 1" in found[0][3]


@pytest.mark.parametrize(
    "points, step_seconds, since, expected",
    [
        (EACH_STEP, 1.0, [1700, 1900, 3000, 1000, 800, 10], [(1900, True), (800, False)]),
        (EACH_STEP, 900.0, [1900, 2600, 2800], [(2800, True)]),  # three steps
        (CommitPoints(0, 7200.0), 1.0, [7200, 21000, 21700], [(21700, True)]),
        (CommitPoints(100, 0.0), 60.0, [6000, 17000, 18100], [(18100, True)]),
        (CommitPoints(0, 0.0), 1.0, [1e6], []),  # only the end of the run is durable
    ],
)
def test_no_durable_step(
    points: CommitPoints, step_seconds: float, since: list[float], expected: list[tuple[float, bool]]
) -> None:
    alerts = Alerts(points)
    for _ in range(20):
        assert not list(alerts.attempt(attempt(seconds=step_seconds)))
    found = [(seconds, change) for seconds in since for change in alerts.durable(seconds, 3)]
    assert [(seconds, change.raised) for seconds, change in found] == expected
    assert all(change.name == NOT_DURABLE for _, change in found)


def test_what_stands_is_known_by_name() -> None:
    alerts = Alerts(EACH_STEP)
    (change,) = alerts.attempt(attempt(NAN, step=7))
    assert alerts.standing == {NOT_FINITE: change.text}
    assert "not finite (nan) after step 7" in change.text
    assert change.name in MEANINGS
