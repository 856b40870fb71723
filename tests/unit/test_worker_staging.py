"""Gradients on their way into the arena, whatever their size, layout and dtype."""

from __future__ import annotations

import pytest
import torch

from luwu.worker.staging import HostStaging


@pytest.mark.parametrize("rows", [3, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_gradient_is_copied_whole(rows: int, dtype: torch.dtype, transposed: bool) -> None:
    gradient = torch.randn(rows, rows, generator=torch.Generator().manual_seed(rows), requires_grad=True)
    gradient = gradient.t() if transposed else gradient
    destination = torch.full((rows, rows), float("nan"), dtype=dtype)
    HostStaging.write(None, destination, gradient.detach())  # type: ignore[arg-type]
    assert torch.equal(destination, gradient.detach().to(dtype))
