"""Workers that others may replace, forks of one process: `python -m ours.elastic FILE`.

The JSON file has where, shape, rows and steps. A worker prints a JSON line for each step that it made, with the bits of
its loss, and at the end the digest of the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from kit.model import ADAMW, batches, build, gpt

import luwu
from luwu.launch.forking import become_worker
from luwu.session.local import join
from luwu.session.session import Session

KEY = "the key of a benchmark's job"
WORKERS = 2


def enter(where: str, rank: int) -> Session:
    """Join the server at a URL or at the path of a socket."""
    return luwu.connect(where, rank=rank, workers=WORKERS, key=KEY) if "://" in where else join(where, rank, WORKERS)


def digest(model: torch.nn.Module) -> str:
    """Return a digest of all parameters."""
    state = luwu.full_state_dict(model)
    values = b"".join(state[name].numpy().tobytes() for name in sorted(state))
    return hashlib.sha256(values).hexdigest()


def main() -> None:
    """Train to the last step, in each fork."""
    if not become_worker(lambda: None):
        return
    wanted: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    with enter(wanted["where"], int(os.environ["RANK"])) as session:
        model = luwu.parallelize(build(wanted["shape"]), session, blocks=[gpt.Block])
        optimizer = luwu.AdamW(model, **ADAMW)
        found = batches(wanted["rows"], wanted["shape"]["seq"], session.rank, WORKERS, first=session.step)
        while session.step < wanted["steps"]:
            ids, targets = next(found)

            def attempt(ids: torch.Tensor = ids, targets: torch.Tensor = targets) -> float:
                loss = model(ids, targets)
                loss.backward()
                return float(loss.detach())

            loss = optimizer.step(attempt)
            print(json.dumps({"step": session.step, "loss": loss.hex(), "at": time.monotonic()}), flush=True)
        print(json.dumps({"digest": digest(model)}), flush=True)


if __name__ == "__main__":
    main()
