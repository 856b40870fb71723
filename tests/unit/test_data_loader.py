from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from luwu.data import BatchSampler, Windows
from luwu.data.sampler import Sampler
from luwu.errors import DataError

TOKENS = np.arange(1001, dtype="<u2") * 7


def test_a_window_is_its_inputs_and_one_more():
    windows = Windows(TOKENS, seq=10)
    assert len(windows) == 100
    assert windows[99].tolist() == (np.arange(990, 1001) * 7).tolist()
    assert windows[0].dtype == torch.int64
    assert all(torch.equal(windows[index][-1], windows[index + 1][0]) for index in range(99))
    for index in (-1, 100):
        with pytest.raises(IndexError, match="expected 0 to 99"):
            windows[index]
    assert len(Windows(TOKENS[:10], seq=10)) == 0


@pytest.mark.parametrize("processes", [0, 2])
def test_a_data_loader_gives_what_luwu_train_trains_on(processes):
    windows = Windows(TOKENS, seq=10)
    order = BatchSampler(len(windows), 7, seed=3, rank=1, workers=2, start=12)
    loader = DataLoader(windows, batch_sampler=order, num_workers=processes)
    sampler = Sampler(TOKENS, 10, 7, 3)
    for attempt, batch in enumerate(islice(loader, 5), start=12):
        inputs, targets = sampler.batch_of(attempt, 1, 2)
        assert batch[:, :-1].tolist() == inputs.tolist()
        assert batch[:, 1:].tolist() == targets.tolist()


@given(
    windows=st.integers(1, 200),
    batch=st.integers(1, 40),
    seed=st.integers(0, 2**63 - 1),
    stages=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 12)), min_size=1, max_size=4),
)
def test_each_window_once_an_epoch_however_often_the_run_is_resumed(windows, batch, seed, stages):
    """Stages of a run: (workers, attempts) each; a stage begins where the last one ended."""
    seen, attempts = [], 0
    for workers, count in stages:
        parts = [
            islice(BatchSampler(windows, batch, seed=seed, rank=rank, workers=workers, start=attempts), count)
            for rank in range(workers)
        ]
        for shares in zip(*parts, strict=True):
            assert sum(map(len, shares)) == batch
            seen += [window for own in shares for window in own]
        attempts += count
    assert len(seen) == batch * attempts
    for first in range(0, len(seen) - windows + 1, windows):
        assert sorted(seen[first : first + windows]) == list(range(windows))
    whole = islice(BatchSampler(windows, batch, seed=seed), attempts)
    assert seen == [window for own in whole for window in own]


def test_no_window_is_no_order():
    with pytest.raises(DataError, match="at least one sequence"):
        BatchSampler(0, 4)
