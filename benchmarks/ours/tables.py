"""A worker over TCP whose model is mostly tables: an embedding and a head. A sample is one more step.

In the end it says the most memory that it ever had, by the kernel: nothing of it is shared with other processes.

Settings: run, key, inputs and outputs (rows of the two tables), hidden, tokens, steps.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Any

import torch
from kit.child import serve, settings, take_stdout
from torch import Tensor, nn
from torch.nn import functional

import luwu


class Tables(nn.Module):
    """An embedding, four layers and a head."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(inputs, hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(4))
        self.head = nn.Linear(hidden, outputs, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Take ids and targets [tokens], int64; return the mean cross entropy in nats."""
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = hidden + functional.gelu(layer(hidden))
        return functional.cross_entropy(self.head(hidden), targets)


def url_of(run: Path, seconds: float = 60.0) -> str:
    """The server's URL, once it listens."""
    until = time.monotonic() + seconds
    while not (run / "url").exists():
        if time.monotonic() > until:
            raise TimeoutError(f"no server in {run} within {seconds:.0f} s")
        time.sleep(0.01)
    return (run / "url").read_text()


def main() -> None:
    """Takes its steps, then one on each request."""
    replies = take_stdout()
    wanted = settings()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    with luwu.connect(url_of(Path(wanted["run"])), rank=0, workers=1, key=wanted["key"]) as session:
        with torch.device("meta"):
            model = Tables(wanted["inputs"], wanted["hidden"], wanted["outputs"])
        luwu.parallelize(model, session)
        optimizer = luwu.AdamW(model, lr=1e-3)
        ids = torch.arange(wanted["tokens"]) % wanted["inputs"]

        def step() -> dict[str, Any]:
            loss = model(ids, ids.roll(-1))
            loss.backward()
            optimizer.step()
            return {"loss": float(loss.detach())}

        for _ in range(wanted["steps"]):
            step()
        serve(replies, step, lambda: {"peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss})


if __name__ == "__main__":
    main()
