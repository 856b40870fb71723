"""DDP over gloo on ranks of different speeds, which have even shares.

Settings: shape, rows, steps, warm_up, slowness (by rank).
"""

from __future__ import annotations

from kit.child import serve, settings, take_stdout
from kit.slowed import slow_down
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch_group import Trainer, join, make_model


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    rank, world = join()
    model = make_model(wanted)
    slow_down(model, wanted["slowness"][rank])
    trainer = Trainer(DistributedDataParallel(model, gradient_as_bucket_view=True), wanted, rank, world)
    trainer.timed(wanted["warm_up"])
    serve(replies, lambda: trainer.timed(wanted["steps"]))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
