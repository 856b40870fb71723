"""Rates of `luwu watch` between two samples of a run."""

from __future__ import annotations

import pytest

from luwu.watch.disks import DiskCounts
from luwu.watch.state import Sample, disk_records, rate, sent_again, traffic


@pytest.mark.parametrize(
    ("before", "now", "seconds", "found"),
    [(10.0, 30.0, 2.0, 10.0), (None, 30.0, 2.0, None), (30.0, 10.0, 2.0, None), (1.0, 2.0, 0.0, None), (5, 5, 1, 0)],
)
def test_a_rate_is_known_where_a_count_goes_on(
    before: float | None, now: float, seconds: float, found: float | None
) -> None:
    assert rate(before, now, seconds) == found


def test_traffic_and_disks_are_rates_between_two_samples() -> None:
    one = Sample(10.0, {"luwu_server_pulled_bytes_total": 100.0}, {"sda": DiskCounts(0, 50, 1)})
    two = Sample(
        12.0, {"luwu_server_pulled_bytes_total": 300.0}, {"sda": DiskCounts(8, 70, 4), "sdb": DiskCounts(1, 1, 0)}
    )
    assert traffic(None, one) == dict.fromkeys(["pulled", "pushed", "store read", "store written"])
    assert traffic(one, two) == {"pulled": 100.0, "pushed": None, "store read": None, "store written": None}
    assert disk_records(one, two) == [
        {"name": "sda", "read_bytes_per_second": 4.0, "written_bytes_per_second": 10.0, "queue": 4},
        {"name": "sdb", "read_bytes_per_second": None, "written_bytes_per_second": None, "queue": 0},
    ]
    assert disk_records(None, one)[0]["read_bytes_per_second"] is None


def test_the_share_of_packets_that_are_sent_again_is_known_where_some_were_sent() -> None:
    def sample(sent: float, again: float) -> Sample:
        return Sample(0.0, {"luwu_server_packets_out_total": sent, "luwu_server_packets_again_total": again})

    assert sent_again(sample(100, 1), sample(300, 5)) == 0.02
    assert sent_again(sample(100, 1), sample(100, 1)) is None
    assert sent_again(None, sample(1, 1)) is sent_again(Sample(0.0), Sample(1.0)) is None
