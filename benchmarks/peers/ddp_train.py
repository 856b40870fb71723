"""DDP over gloo, float32. Settings: shape, rows, steps, checkpoint, warm_up."""

from __future__ import annotations

from kit.child import serve, settings, take_stdout
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch_group import Trainer, join, make_model


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    rank, world = join()
    model = DistributedDataParallel(make_model(wanted), gradient_as_bucket_view=True)
    trainer = Trainer(model, wanted, rank, world)
    trainer.timed(wanted.get("warm_up", 2))
    serve(replies, lambda: trainer.timed(wanted["steps"]))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
