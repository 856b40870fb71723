"""The reference of `parity_models`: plain torch, torch.optim.AdamW, torch.nn.utils.clip_grad_norm_.

Settings: variants, steps, max_grad_norm.
"""

from __future__ import annotations

from typing import Any

import torch
from kit.child import serve, settings, take_stdout
from kit.variants import ADAMW, build, losses
from torch import nn


def train(wanted: dict[str, Any], variant: str) -> list[float]:
    """The losses of one variant over the whole batch."""
    model = build(variant)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, **ADAMW)

    def clip() -> None:
        nn.utils.clip_grad_norm_(trainable, wanted["max_grad_norm"])

    return losses(model, variant, optimizer, range(wanted["steps"]), before_step=clip)


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    serve(replies, lambda: {"losses": {variant: train(wanted, variant) for variant in wanted["variants"]}})


if __name__ == "__main__":
    main()
