"""FSDP2 over gloo. Settings: shape, rows, steps, checkpoint, warm_up, dtype ("float32" or "bfloat16")."""

from __future__ import annotations

import torch
from kit.child import serve, settings, take_stdout
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch_group import Trainer, join, make_model


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    rank, world = join()
    model = make_model(wanted)
    mesh = init_device_mesh("cpu", (world,))
    policy = MixedPrecisionPolicy()
    if wanted.get("dtype") == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in model.gpt.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    trainer = Trainer(model, wanted, rank, world)
    trainer.timed(wanted.get("warm_up", 2))
    serve(replies, lambda: trainer.timed(wanted["steps"]))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
