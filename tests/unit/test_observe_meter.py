from __future__ import annotations

import pytest

from luwu.observe.meter import Meter


def report(attempt, *, committed=True, loss=2.0, sequences=4, seconds=1.0, wait=0.0, busy=1.0, **changes):
    endpoint = {"bytes_pulled": 100, "bytes_pushed": 50, "wait_seconds": wait, "busy_seconds": busy}
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
        "seconds": seconds,
        "endpoint": endpoint,
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


def test_reports_may_overtake_each_other():
    meter = Meter(workers=2, steps=10)
    meter.add(0, report(0))
    meter.add(0, report(1))
    first, second = meter.add(1, report(0)), meter.add(1, report(1))
    assert first is not None and second is not None
    assert (first.attempt, second.attempt) == (0, 1)


def test_the_hidden_share_counts_waiting_since_the_step_before():
    meter = Meter(workers=1, steps=10)
    first = meter.add(0, report(0, wait=1.0, busy=1.0))
    second = meter.add(0, report(1, wait=1.5, busy=3.0))
    assert first is not None and second is not None
    assert (first.hidden, second.hidden) == (0.0, 0.75)
    assert meter.hidden() == pytest.approx(0.375)


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
