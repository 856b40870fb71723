"""The settings' text for one gradient of the workers', and the runs that have no such average."""

from __future__ import annotations

import pytest

from luwu.core.aggregation import require_even_shares, trims_for
from luwu.errors import ConfigError
from luwu.launch.settings import RunSettings, Settings
from luwu.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("aggregate", "workers", "trims"),
    [
        ("mean", 1, 0),
        ("median", 3, 1),
        ("median", 4, 1),
        ("median", 5, 2),
        ("median", 64, 31),
        ("trimmed", 3, 1),
        ("trimmed 2", 5, 2),
        ("trimmed 2", 8, 2),
    ],
)
def test_values_that_are_left_out_at_each_end(aggregate: str, workers: int, trims: int) -> None:
    assert trims_for(aggregate, workers) == trims


@pytest.mark.parametrize(
    ("aggregate", "workers", "fewest"),
    [("median", 2, 3), ("median", 1, 3), ("trimmed", 2, 3), ("trimmed 2", 4, 5), ("median", 65, 3)],
)
def test_a_run_without_enough_workers_or_with_too_many_is_refused(aggregate: str, workers: int, fewest: int) -> None:
    change = "more" if workers < fewest else "fewer"
    words = rf"aggregate: expected {fewest} to 64 workers for {aggregate}, found {workers}; run {change} workers"
    with pytest.raises(ConfigError, match=words):
        trims_for(aggregate, workers)
    assert trims_for(aggregate, fewest) > 0


@pytest.mark.parametrize(
    "text", ["", "average", "trimmed 0", "trimmed -1", "trimmed 1.5", "median 2", "trimmed 32", "trimmed 01"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected mean, median, trimmed, or trimmed with a number"):
        RunSettings(aggregate=text)
    assert RunSettings(aggregate="  trimmed   2 ").aggregate == "trimmed 2"
    assert RunSettings(aggregate="trimmed 31").aggregate == "trimmed 31"
    assert RunSettings(aggregate="trimmed 1").aggregate == "trimmed"


def test_shares_of_a_batch_must_be_equal_where_gradients_are_compared() -> None:
    require_even_shares("mean", 16, 3, balance=True)
    require_even_shares("median", 15, 3, balance=False)
    with pytest.raises(ConfigError, match="equal shares of the batch for median, found a batch of 16 for 3 workers"):
        require_even_shares("median", 16, 3, balance=False)
    with pytest.raises(ConfigError, match="equal shares of the batch for trimmed, found balance"):
        require_even_shares("trimmed", 15, 3, balance=True)


@pytest.mark.parametrize(("workers", "min_workers", "found"), [(2, 0, 2), (4, 2, 2), (65, 3, 65)])
def test_a_server_whose_runs_may_have_too_few_or_too_many_workers_is_refused(
    workers: int, min_workers: int, found: int
) -> None:
    with pytest.raises(ValueError, match=rf"server\.aggregate: expected 3 to 64 workers for median, found {found}"):
        ServerSettings(stores=("s",), workers=workers, min_workers=min_workers, aggregate="median")
    ServerSettings(stores=("s",), workers=4, min_workers=3, aggregate="median")


def test_settings_that_cannot_work_are_refused_before_a_run_begins() -> None:
    with pytest.raises(ValueError, match="expected mean over udp, where switches add the gradients, found median"):
        ServerSettings(stores=("s",), workers=3, transport="udp", aggregate="median")
    with pytest.raises(ValueError, match="aggregate: expected 3 to 64 workers for median, found 2"):
        Settings(run=RunSettings(aggregate="median", workers=2))
    with pytest.raises(ValueError, match="found a batch of 16 for 3 workers"):
        Settings(run=RunSettings(aggregate="median", workers=3, batch=16))
