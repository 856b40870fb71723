"""Hashes of the gradients that workers in this process push, in whatever memory they lie."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor

from luwu.worker.device_staging import DeviceStaging
from luwu.worker.flatten import Block
from luwu.worker.staging import HostStaging


def record_gradients(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that each push adds a hash to: of the block's name and its gradient's bits."""
    pushed: list[str] = []
    for staging in (HostStaging, DeviceStaging):
        _record(staging, pushed, monkeypatch)
    return pushed


def _record(staging: type[Any], pushed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gradient, push = staging.gradient, staging.push
    written: dict[tuple[int, int], Tensor] = {}

    def gradient_seen(self: Any, block: Block) -> Tensor:
        flat: Tensor = gradient(self, block)
        written[id(self), block.index] = flat
        return flat

    def push_seen(self: Any, block: Block) -> None:
        bits = written.pop((id(self), block.index)).detach().view(torch.uint8).numpy().tobytes()
        pushed.append(f"{block.name} {hashlib.sha256(bits).hexdigest()}")
        push(self, block)

    monkeypatch.setattr(staging, "gradient", gradient_seen)
    monkeypatch.setattr(staging, "push", push_seen)
