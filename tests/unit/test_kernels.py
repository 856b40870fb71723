"""The native kernels as Python sees them, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from luwu import _native, _native_testing
from luwu.errors import ConfigError

ADAMW = {"lr": 3e-3, "betas": (0.9, 0.98), "eps": 1e-8, "weight_decay": 0.1}


def as_uint16(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.uint16).numpy()


def make_states(elements: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Master, m, v, and the bfloat16 copy."""
    master = torch.randn(elements, generator=torch.Generator().manual_seed(1)).numpy()
    return master, np.zeros(elements, np.float32), np.zeros(elements, np.float32), np.zeros(elements, np.uint16)


def adamw_update(master, m, v, low, gradients, dtype, scale, t=1, threads=1, low_dtype="bfloat16") -> bool:
    settings = [ADAMW["lr"], *ADAMW["betas"], ADAMW["eps"], ADAMW["weight_decay"]]
    return _native_testing.optimizer_update(
        "adamw", master, [m, v], low, gradients, dtype, scale, settings, t, threads, low_dtype=low_dtype
    )


def make_gradients(elements: int, workers: int, dtype: torch.dtype, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + workers)
    return [torch.randn(elements, generator=generator).to(dtype) for _ in range(workers)]


def as_arrays(gradients: list[torch.Tensor]) -> list[np.ndarray]:
    return [gradient.numpy() if gradient.dtype == torch.float32 else as_uint16(gradient) for gradient in gradients]


def torch_optimizer(parameter: torch.nn.Parameter) -> torch.optim.AdamW:
    return torch.optim.AdamW([parameter], **ADAMW)


@settings(max_examples=40, deadline=None)
@given(
    elements=st.integers(0, 3000),
    workers=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    threads=st.integers(1, 3),
)
def test_adamw_follows_torch(elements: int, workers: int, dtype: torch.dtype, threads: int) -> None:
    low_dtype = torch.float16 if dtype is torch.float16 else torch.bfloat16
    master, m, v, low = make_states(elements)
    parameter = torch.nn.Parameter(torch.from_numpy(master.copy()))
    optimizer = torch_optimizer(parameter)
    for step in range(1, 5):
        gradients = make_gradients(elements, workers, dtype, step)
        finite = adamw_update(
            master, m, v, low, as_arrays(gradients), str(dtype).removeprefix("torch."), 1 / workers,
            t=step, threads=threads, low_dtype=str(low_dtype).removeprefix("torch."),
        )  # fmt: skip
        parameter.grad = sum(gradient.float() for gradient in gradients) / workers
        optimizer.step()
        assert finite
        np.testing.assert_allclose(master, parameter.detach().numpy(), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(low, as_uint16(torch.from_numpy(master).to(low_dtype)))
    state = optimizer.state[parameter]
    np.testing.assert_allclose(m, state["exp_avg"].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(v, state["exp_avg_sq"].numpy(), rtol=1e-5, atol=1e-6)


def test_threads_do_not_change_a_bit() -> None:
    gradients = as_arrays(make_gradients(100_003, 3, torch.bfloat16, 1))
    results = []
    for threads in (1, 2, 7, 60):
        states = make_states(100_003)
        assert adamw_update(*states, gradients, "bfloat16", 1 / 3, threads=threads)
        results.append(states)
    for states in results[1:]:
        for found, expected in zip(states, results[0], strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_gradient_that_is_not_finite_is_reported(value: float, threads: int) -> None:
    for place in (0, 63, 64, 4095, 4096, 9999):
        gradient = torch.ones(10_000)
        gradient[place] = value
        states = make_states(10_000)
        assert not adamw_update(*states, [gradient.numpy()], "float32", 1.0, threads=threads)


def test_buffers_that_do_not_fit_are_refused() -> None:
    master, m, v, low = make_states(10)
    gradient = np.zeros(10, np.float32)

    def update(*, states=(master, m, v, low), gradients=(gradient,), dtype="float32", t=1, threads=1):
        return adamw_update(*states, list(gradients), dtype, 1.0, t=t, threads=threads)

    assert update()
    with pytest.raises(ConfigError, match="master has 9 elements; expected 10"):
        update(states=(master[:9], m, v, low))
    with pytest.raises(ConfigError, match="low has 9 elements"):
        update(states=(master, m, v, low[:9]))
    with pytest.raises(ConfigError, match="gradient 1 has 9 elements"):
        update(gradients=(gradient, gradient[:9]))
    with pytest.raises(ConfigError, match="empty"):
        update(gradients=())
    with pytest.raises(ConfigError, match="gradient 0 has another element type"):
        update(dtype="bfloat16")
    with pytest.raises(ConfigError, match="expected float32, bfloat16 or float16"):
        update(dtype="float64")
    with pytest.raises(ConfigError, match="low_dtype is 'float32'; expected bfloat16 or float16"):
        adamw_update(master, m, v, low, [gradient], "float32", 1.0, low_dtype="float32")
    with pytest.raises(ConfigError, match="t is 0"):
        update(t=0)
    with pytest.raises(ConfigError, match="threads is 0"):
        update(threads=0)
    with pytest.raises(ConfigError, match=r"optimizer is 'adamx'; expected one of adamw, adam, sgd"):
        _native_testing.optimizer_update("adamx", master, [m, v], low, [gradient], "float32", 1.0, [1e-3], 1)
    with pytest.raises(ConfigError, match="there are 1 states; expected 2 for adamw"):
        _native_testing.optimizer_update("adamw", master, [m], low, [gradient], "float32", 1.0, [1e-3], 1)
    with pytest.raises(ConfigError, match="has 7 hyper-parameters; expected at most 6"):
        _native_testing.optimizer_update("adamw", master, [m, v], low, [gradient], "float32", 1.0, [0.1] * 7, 1)
    with pytest.raises(TypeError):  # never a silent copy: the update is in place
        update(states=(master.astype(np.float64), m, v, low))
    with pytest.raises(TypeError):
        update(states=(np.zeros(20, np.float32)[::2], m, v, low))


def test_bfloat16_rounding_is_that_of_torch_bit_for_bit() -> None:
    # All high halves, with low halves below, at and above the tie.
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    for below in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        source = (high | below).view(np.float32)
        found = _native_testing.float_to_bfloat16(source)
        expected = as_uint16(torch.from_numpy(source).bfloat16())
        number = ~np.isnan(source)
        np.testing.assert_array_equal(found[number], expected[number])
        assert torch.from_numpy(found[~number]).view(torch.bfloat16).isnan().all()


def test_float16_is_that_of_torch_bit_for_bit() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    widened = every.float()
    np.testing.assert_array_equal(
        _native_testing.float16_to_float(as_uint16(every)).view(np.uint32), widened.numpy().view(np.uint32)
    )
    # Every float16, the floats around the middle to the next one, and floats of all magnitudes: also those that are
    # subnormal, overflow, or are not a number.
    bits = widened.numpy().view(np.uint32)
    near = [bits + offset for offset in (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF)]
    spread = np.arange(0, 1 << 32, 9973, dtype=np.uint64).astype(np.uint32)
    source = np.concatenate([*near, spread]).view(np.float32)
    expected = as_uint16(torch.from_numpy(source).half())
    found = _native_testing.float_to_float16(source)
    number = ~np.isnan(source)
    np.testing.assert_array_equal(found[number], expected[number])
    assert torch.from_numpy(found[~number]).view(torch.float16).isnan().all()


@settings(max_examples=40, deadline=None)
@given(
    elements=st.integers(0, 1000),
    workers=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_gradients_are_summed_in_order(elements: int, workers: int, dtype: torch.dtype) -> None:
    gradients = make_gradients(elements, workers, dtype, 1)
    expected = gradients[0].float()
    for gradient in gradients[1:]:
        expected = expected + gradient.float()
    found = _native_testing.sum_gradients(as_arrays(gradients), str(dtype).removeprefix("torch."), 0.25)
    np.testing.assert_array_equal(found, (expected * 0.25).numpy())


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=9000), cut=st.integers(0, 9000))
def test_crc32c_chains(data: bytes, cut: int) -> None:
    assert _native.crc32c(data[cut:], _native.crc32c(data[:cut])) == _native.crc32c(data)


def test_crc32c_takes_any_contiguous_buffer() -> None:
    assert _native.crc32c(b"123456789") == 0xE3069283
    assert _native.crc32c(memoryview(bytearray(b"123456789"))) == 0xE3069283
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert _native.crc32c(values) == _native.crc32c(values.tobytes())


def test_the_instruction_set_is_named() -> None:
    assert _native.instruction_set() in {"avx512", "avx2", "sse2", "neon", "base"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_past_the_cache_is_whole(dtype: torch.dtype) -> None:
    source = torch.randn(300, 1001, generator=torch.Generator().manual_seed(3)).to(dtype)
    target = torch.zeros_like(source)
    _native.copy_past_cache(target, source)
    assert torch.equal(target, source)
    with pytest.raises(ConfigError, match=r"target has 8 bytes; expected 12"):
        _native.copy_past_cache(torch.zeros(2), torch.zeros(3))
