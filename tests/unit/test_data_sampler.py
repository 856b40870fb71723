from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luwu.core.shares import even_share
from luwu.data.sampler import Permutation, Sampler, cut, mixed

TEXT = np.arange(10_000, dtype=np.int64).astype(np.uint8)


@given(st.integers(1, 300), st.binary(min_size=1, max_size=16))
def test_a_permutation_visits_every_number_once(size, key):
    order = Permutation(size, key)
    assert sorted(order[place] for place in range(size)) == list(range(size))


def test_permutations_differ_by_key():
    orders = [tuple(Permutation(1000, mixed(0, epoch))[place] for place in range(20)) for epoch in range(10)]
    assert len(set(orders)) == 10


def test_places_outside_are_refused():
    with pytest.raises(IndexError, match="expected 0 to 9"):
        Permutation(10, b"key")[10]


def test_an_epoch_shows_every_window_once():
    sampler = Sampler(TEXT, seq=10, batch=9, seed=3)
    assert sampler.windows == 999
    seen = [index for attempt in range(111) for index in sampler.indices(attempt)]
    assert sorted(seen) == list(range(999))
    assert sampler.indices(111) != sampler.indices(0)


@given(st.integers(1, 7), st.integers(0, 10**12), st.integers(0, 2**62))
def test_the_whole_batch_is_the_same_for_any_number_of_workers(workers, attempt, seed):
    sampler = Sampler(TEXT, seq=10, batch=7, seed=seed)
    together = np.concatenate([sampler.batch_of(attempt, rank, workers)[0] for rank in range(workers)])
    assert np.array_equal(together, Sampler(TEXT, seq=10, batch=7, seed=seed).batch_of(attempt, 0, 1)[0])


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_are_even_and_whole(count, workers):
    parts = [list(range(count))[even_share(count, rank, workers)] for rank in range(workers)]
    assert [item for part in parts for item in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_targets_are_the_next_bytes():
    inputs, targets = cut(TEXT, [0, 3], seq=4)
    assert inputs.tolist() == [[0, 1, 2, 3], [12, 13, 14, 15]]
    assert targets.tolist() == [[1, 2, 3, 4], [13, 14, 15, 16]]


def test_the_order_of_the_data_never_changes_between_versions():
    assert Sampler(TEXT, seq=10, batch=4, seed=0).indices(5) == [169, 462, 351, 820]
