"""Models with more blocks than the rings between worker and server have places."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import luwu

UNITS = 300


class Deep(nn.Module):
    """Small units behind a root whose gradient is the last of a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.units = nn.ModuleList(nn.Linear(4, 4) for _ in range(UNITS))

    def forward(self, values: Tensor) -> Tensor:
        values = values * self.scale
        for unit in self.units:
            values = values + unit(values) / UNITS
        return values.square().mean()


def test_more_blocks_than_a_ring_has_places(tmp_path: Path) -> None:
    torch.manual_seed(1)
    with luwu.open(tmp_path, memory="64MiB") as session:
        model = luwu.parallelize(Deep(), session, blocks=[nn.Linear])
        optimizer = luwu.AdamW(model, lr=1e-2)
        losses = []
        for _ in range(3):
            loss = model(torch.ones(2, 4))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert session.step == 3
        assert losses[0] > losses[1] > losses[2]
