"""First calls of MKL's vector functions."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.unit.fake_session import FakeSession
from torch import Tensor

from harness.small_models import Block, Tiny
from luwu.worker import vector_functions
from luwu.worker.parallelize import parallelize

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch is built without MKL")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, torch.dtype, int]]:
    """Thread, dtype and elements of each call, in a process that has made none."""
    made: list[tuple[str, torch.dtype, int]] = []

    def function(values: Tensor) -> None:
        made.append((threading.current_thread().name, values.dtype, values.numel()))

    monkeypatch.setattr(vector_functions, "_chosen", False)
    monkeypatch.setattr(vector_functions, "FUNCTIONS", (function, function))
    return made


@needs_mkl
def test_one_thread_makes_the_first_calls_and_the_others_wait_for_it(calls: list[tuple[str, torch.dtype, int]]) -> None:
    together = threading.Barrier(4, timeout=60)

    def choose() -> int:
        together.wait()
        vector_functions.choose_vector_functions()
        return len(calls)

    with ThreadPoolExecutor(4) as pool:
        seen = [future.result() for future in [pool.submit(choose) for _ in range(4)]]
    assert seen == [4] * 4
    assert len({thread for thread, _, _ in calls}) == 1
    assert [(dtype, elements) for _, dtype, elements in calls] == [(torch.float32, 1)] * 2 + [(torch.float64, 1)] * 2


@needs_mkl
def test_a_parallelized_model_computes_only_after_the_first_calls(calls: list[tuple[str, torch.dtype, int]]) -> None:
    parallelize(Tiny(), FakeSession(), blocks=[Block])
    assert len(calls) == 4


@needs_mkl
def test_each_function_is_one_that_computes() -> None:
    half = torch.full((1,), 0.5)
    assert all(bool(function(half).isfinite()) for function in vector_functions.FUNCTIONS)


def test_without_mkl_nothing_is_called(
    calls: list[tuple[str, torch.dtype, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    vector_functions.choose_vector_functions()
    assert calls == []
