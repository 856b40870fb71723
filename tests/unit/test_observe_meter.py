from __future__ import annotations

import pytest

from luwu.observe.meter import Meter


def report(attempt, *, committed=True, loss=2.0, sequences=4, seconds=1.0, wait=0.0, busy=1.0, **changes):
    return {
        "kind": "step",
        "attempt": attempt,
        "step": attempt + 1,
        "committed": committed,
        "loss": loss,
        "sequences": sequences,
        "tokens": sequences * 8,
        "lr": 0.1,
        "grad_norm": 0.5,
        "began": 100.0,
        "ended": 100.0 + seconds,
        "waited_seconds": wait,
        "busy_seconds": busy,
        "bytes_pulled": 100,
        "bytes_pushed": 50,
    } | changes


def test_a_step_is_whole_once_every_worker_reported_it():
    meter = Meter(workers=2, steps=10)
    assert meter.add(1, report(0, loss=4.0, sequences=2, seconds=2.0)) is None
    record = meter.add(0, report(0, loss=1.0, sequences=4, seconds=1.0))
    assert record is not None
    assert record.loss == pytest.approx(2.0)  # weighted by sequences
    assert record.tokens == 48
    assert record.seconds == 2.0
    assert record.tokens_per_second == 24.0
    assert (record.bytes_pulled, record.bytes_pushed) == (200, 100)


NOTED = {"attempt": 0, "loss": 4.0, "sequences": 2, "tokens": 16, "bytes_pulled": 70, "bytes_pushed": 30}


@pytest.mark.parametrize("late", [False, True])
def test_what_a_lost_worker_had_noted_stands_for_its_report(late):
    """The other worker may report the attempt before another takes the place, or after."""
    meter = Meter(workers=2, steps=10)
    if late:
        assert list(meter.replace(1, 1, [NOTED])) == []
        record = meter.add(0, report(0, loss=1.0, sequences=4))
    else:
        assert meter.add(0, report(0, loss=1.0, sequences=4)) is None
        (record,) = meter.replace(1, 1, [NOTED])
    assert record is not None
    assert (record.step, record.loss, record.tokens) == (1, pytest.approx(2.0), 48)
    assert (record.bytes_pulled, record.bytes_pushed) == (170, 80)
    assert list(meter.replace(1, 1, [NOTED])) == []


def test_bytes_of_lost_workers_stay_counted():
    """The second one of rank 1 is lost with a report and a later note, the third one before it has done anything."""
    meter = Meter(workers=2, steps=10)
    for rank in (0, 1):
        meter.add(rank, report(0, bytes_pulled=100, bytes_pushed=50))
    assert list(meter.replace(1, 1, [NOTED])) == []  # what it had noted was less than it reported
    for rank, pulled in ((0, 200), (1, 90)):
        record = meter.add(rank, report(1, bytes_pulled=pulled, bytes_pushed=pulled // 2))
    assert (record.bytes_pulled, record.bytes_pushed) == (200 + 100 + 90, 100 + 50 + 45)
    second = NOTED | {"attempt": 2, "bytes_pulled": 180, "bytes_pushed": 90}
    assert list(meter.replace(1, 3, [second])) == []
    assert list(meter.replace(1, 3, [second])) == []
    record = meter.add(0, report(2, bytes_pulled=300, bytes_pushed=150))
    assert (record.bytes_pulled, record.bytes_pushed) == (300 + 100 + 180, 150 + 50 + 90)
    for rank, pulled in ((0, 400), (1, 80)):
        record = meter.add(rank, report(3, bytes_pulled=pulled, bytes_pushed=pulled // 2))
    assert (record.bytes_pulled, record.bytes_pushed) == (400 + 100 + 180 + 80, 200 + 50 + 90 + 40)


def test_a_validation_has_a_loss_when_all_shares_are_there():
    meter = Meter(workers=2, steps=10)
    meter.add(0, report(0, validation=(9.0, 3)))
    (record,) = meter.replace(1, 1, [NOTED])
    assert record.validation_loss is None
    assert meter.validated(1, record.step, (7.0, 1)) == pytest.approx(4.0)
    meter = Meter(workers=2, steps=10)
    meter.add(0, report(0, validation=(9.0, 3)))
    record = meter.add(1, report(0, validation=(7.0, 1)))
    assert record is not None and record.validation_loss == pytest.approx(4.0)


def test_a_newcomer_does_not_hide_the_wait_for_it():
    meter = Meter(workers=2, steps=10)
    for attempt in range(2):
        if attempt:
            list(meter.replace(1, attempt, []))
        meter.add(0, report(attempt, began=100.0 + attempt, ended=101.0 + 9 * attempt))
        record = meter.add(1, report(attempt, began=100.0 + 9 * attempt, ended=101.0 + 9 * attempt))
        assert record is not None and record.seconds == (9.0 if attempt else 1.0)
    for rank in range(2):
        list(meter.replace(rank, 2, []))
    meter.add(0, report(2, began=120.0, ended=121.0))
    record = meter.add(1, report(2, began=120.0, ended=121.0))
    assert record is not None and record.seconds == 11.0


def test_the_wait_for_a_newcomer_counts_although_it_completes_the_attempt_before():
    meter = Meter(workers=2, steps=10)
    meter.add(0, report(0, began=100.0, ended=101.0))
    assert len(list(meter.replace(1, 1, [NOTED]))) == 1
    meter.add(0, report(1, began=101.0, ended=110.0))
    record = meter.add(1, report(1, began=109.0, ended=110.0))
    assert record is not None and record.seconds == 9.0


def test_a_part_of_an_attempt_that_is_made_again_does_not_stand_for_its_report():
    meter = Meter(workers=2, steps=10)
    assert list(meter.replace(1, 0, [NOTED])) == []
    assert meter.add(0, report(0)) is None
    assert meter.add(1, report(0)) is not None


def test_what_nobody_lived_to_report_is_known_when_all_are_new():
    meter = Meter(workers=2, steps=10)
    for rank in range(2):
        assert not meter.all_begin_at(1)
        list(meter.replace(rank, 1, [NOTED]))
    assert meter.all_begin_at(1)
    list(meter.replace(0, 2, []))
    assert not meter.all_begin_at(2)


def test_reports_may_overtake_each_other():
    meter = Meter(workers=2, steps=10)
    meter.add(0, report(0))
    meter.add(0, report(1))
    first, second = meter.add(1, report(0)), meter.add(1, report(1))
    assert first is not None and second is not None
    assert (first.attempt, second.attempt) == (0, 1)


def test_the_hidden_share_is_of_time_not_of_steps():
    meter = Meter(workers=2, steps=10)
    meter.add(0, report(0, wait=1.0, busy=1.0))
    first = meter.add(1, report(0, wait=0.0, busy=1.0))
    meter.add(0, report(1, wait=0.0, busy=3.0))
    second = meter.add(1, report(1, wait=1.0, busy=5.0))
    assert first is not None and second is not None
    assert (first.hidden, second.hidden) == (0.5, 0.875)
    assert meter.hidden() == pytest.approx(0.8)


def test_the_seconds_of_all_steps_are_the_time_of_training():
    """Workers end a step at different times, each of them last once; a validation lies between two steps."""
    meter = Meter(workers=2, steps=10)
    begins = [(10.0, 10.0), (11.0, 11.5), (113.0, 112.0)]
    ends = [(11.0, 11.5), (13.0, 12.0), (114.0, 114.5)]
    found = []
    for attempt, (began, ended) in enumerate(zip(begins, ends, strict=True)):
        meter.add(0, report(attempt, began=began[0], ended=ended[0]))
        found.append(meter.add(1, report(attempt, began=began[1], ended=ended[1])))
    assert [record.seconds for record in found] == [1.5, 1.5, 1.5]


def test_without_communication_nothing_stays_unhidden():
    record = Meter(workers=1, steps=10).add(0, report(0, wait=0.0, busy=0.0))
    assert record is not None and record.hidden == 1.0


def test_rolled_back_steps_are_counted():
    meter = Meter(workers=1, steps=10)
    meter.rolled_back = 2
    meter.add(0, report(0, committed=False))
    meter.add(0, report(1))
    assert meter.rolled_back == 3


def test_time_left_follows_the_recent_pace():
    meter = Meter(workers=1, steps=10)
    assert meter.seconds_left() == 0.0
    meter.add(0, report(0, seconds=1.0))
    meter.add(0, report(1, seconds=3.0))
    assert meter.seconds_left() == 16.0
    assert meter.tokens_per_second() == 16.0
