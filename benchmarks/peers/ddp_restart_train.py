"""DDP over gloo under torchrun, which starts all workers again when one is lost; they go on from a checkpoint.

Settings: shape, rows, checkpoint (a file), every (steps between two), log. A JSON line there for each start and step.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from kit.child import settings
from kit.model import batches
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch_group import make_model, make_optimizer

LINE_BUFFERED = 1


def main() -> None:
    """Trains until it is killed."""
    wanted = settings()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    module = make_model(wanted)
    optimizer = make_optimizer(module)
    file, step = Path(wanted["checkpoint"]), 0
    if file.exists():
        state = torch.load(file, mmap=True)
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(module, gradient_as_bucket_view=True)
    found = batches(wanted["rows"], wanted["shape"]["seq"], rank, world, first=step)
    with open(wanted["log"], "a", LINE_BUFFERED) as log:
        log.write(json.dumps({"rank": rank, "process": os.getpid()}) + "\n")
        while True:
            model(*next(found)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if rank:
                continue
            log.write(json.dumps({"step": step, "workers": world, "at": time.monotonic()}) + "\n")
            if step % wanted["every"] == 0:
                state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, file.with_suffix(".new"))
                file.with_suffix(".new").replace(file)


if __name__ == "__main__":
    main()
