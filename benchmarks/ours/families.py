"""luwu's side of `parity_models`: one store after another, each opened in this process or by rank 0 for all ranks.

Causal language models compute their losses in tiles, as `luwu train` has them do.

Settings: folder, variants, steps, max_grad_norm.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kit.child import serve, settings, take_stdout
from kit.variants import ADAMW, build, is_causal, losses

import luwu


def train(wanted: dict[str, Any], variant: str) -> list[float]:
    """The losses of one variant."""
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model = build(variant)
    if is_causal(variant):
        luwu.tile_head(model)
    with luwu.open(Path(wanted["folder"], variant.replace(" ", "-")), memory="256MiB") as session:
        luwu.parallelize(model, session)
        optimizer = luwu.AdamW(model, **ADAMW, max_grad_norm=wanted["max_grad_norm"])
        return losses(model, variant, optimizer, range(wanted["steps"]), rank, workers)


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    serve(replies, lambda: {"losses": {variant: train(wanted, variant) for variant in wanted["variants"]}})


if __name__ == "__main__":
    main()
