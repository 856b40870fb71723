"""The reference of `parity`: one process, the whole global batch, torch.optim.AdamW as it comes."""

from __future__ import annotations

from kit.child import serve, settings, take_stdout
from torch_group import Trainer, make_model


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    trainer = Trainer(make_model(wanted), wanted, rank=0, world=1, fused=False)
    serve(replies, lambda: trainer.timed(wanted["steps"]))


if __name__ == "__main__":
    main()
