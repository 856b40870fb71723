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


def test_what_a_lost_worker_had_noted_stands_for_its_report():
    meter = Meter(workers=2, steps=10)
    noted = {"attempt": 0, "loss": 4.0, "sequences": 2, "tokens": 16, "bytes_pulled": 70, "bytes_pushed": 30}
    assert meter.fill_in(1, noted) is None  # nobody has reported the attempt
    meter.add(0, report(0, loss=1.0, sequences=4, validation=(9.0, 3)))
    assert meter.fill_in(0, noted) is None  # that report is there
    assert meter.fill_in(1, noted | {"attempt": 1}) is None
    record = meter.fill_in(1, noted)
    assert record is not None
    assert (record.step, record.loss, record.tokens) == (1, pytest.approx(2.0), 48)
    assert (record.bytes_pulled, record.bytes_pushed) == (170, 80)
    assert record.validation_loss == pytest.approx(3.0)  # of the worker that told it
    assert meter.fill_in(1, noted) is None


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
