"""A worker of a small training: `python -m tests.clusters.small_training FOLDER`, with its place in the environment.

In its tenth step every worker waits for the file ``gate`` in the folder, in the middle of the attempt.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import luwu

LAST_STEP, GATE_STEP, ROWS = 20, 10, 12


def train(session: luwu.Session, folder: Path) -> dict[str, torch.Tensor]:
    """Train to the last step and return the model's values; the samples of a step are divided among the workers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    luwu.parallelize(model, session)
    optimizer = luwu.AdamW(model, lr=1e-2)

    def attempt() -> None:
        batch = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(session.step))
        share = batch[session.rank :: session.workers]
        loss = model(share).square().mean() * len(share) * session.workers / ROWS
        if session.step == GATE_STEP:
            (folder / f"at-gate-{session.rank}").write_text(str(os.getpid()))
            while not (folder / "gate").exists():
                time.sleep(0.02)
        loss.backward()

    while session.step < LAST_STEP:
        optimizer.step(attempt)
    return luwu.full_state_dict(model)


if __name__ == "__main__":
    with luwu.connect() as joined:
        values = train(joined, Path(sys.argv[1]))
        if joined.rank == 0:
            torch.save(values, Path(sys.argv[1], "values.pt"))
