"""torchft: one of two replicas. Settings: shape, rows, rank, lighthouse, log; a JSON line there for each step."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

import torch
from kit.child import settings
from kit.model import batches
from torch.distributed import TCPStore
from torch_group import make_model, make_optimizer
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

PATIENCE = timedelta(seconds=10)
LINE_BUFFERED = 1


def main() -> None:
    """Trains until it is killed."""
    wanted = settings()
    torch.set_num_threads(1)
    model = make_model(wanted)
    optimizer = make_optimizer(model)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE), min_replica_size=1, rank=0, world_size=1, store_addr="127.0.0.1",
        store_port=store.port, lighthouse_addr=wanted["lighthouse"], replica_id=f"worker_{wanted['rank']}_",
        timeout=PATIENCE, quorum_timeout=PATIENCE, connect_timeout=PATIENCE, load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    )  # fmt: skip
    wrapped, stepping = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    found = batches(wanted["rows"], wanted["shape"]["seq"], wanted["rank"], 2)
    with open(wanted["log"], "a", LINE_BUFFERED) as log:
        while True:
            stepping.zero_grad()
            wrapped(*next(found)).backward()
            before = manager.current_step()
            stepping.step()
            if manager.current_step() != before:
                row = {"step": manager.current_step(), "workers": manager.num_participants(), "at": time.monotonic()}
                log.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
