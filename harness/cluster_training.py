"""A worker of a small training: `python -m harness.cluster_training FOLDER`, with its place in the environment.

In step `GATE_STEP` every worker writes its process id to ``at-gate-RANK`` in the folder, and waits in the middle of the
attempt for the file ``gate`` there. When that step is committed worker 0 makes the file ``passed``, and at the end it
writes the model to ``values.pt``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch

import luwu
from luwu.core.files import replace_text

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
            replace_text(folder / f"at-gate-{session.rank}", str(os.getpid()))
            while not (folder / "gate").exists():
                time.sleep(0.02)
        loss.backward()

    while session.step < LAST_STEP:
        optimizer.step(attempt)
        if session.step > GATE_STEP and session.rank == 0:
            (folder / "passed").touch()
    return luwu.full_state_dict(model)


def processes_at_gate(folder: Path) -> dict[int, int]:
    """Return the processes of the workers that wait in the middle of the step, by rank."""
    files = {int(file.name.rpartition("-")[2]): file for file in folder.glob("at-gate-*") if file.is_file()}
    return {rank: int(file.read_text()) for rank, file in files.items()}


def is_same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    """Compare the values of two models bit for bit."""
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def work(folder: Path) -> None:
    """Be a worker, whose place is in the environment."""
    with luwu.connect() as session:
        values = train(session, folder)
        if session.rank == 0:
            torch.save(values, folder / "values.pt")


if __name__ == "__main__":
    work(Path(sys.argv[1]))
