"""The reference of `lora`: peft and plain torch in one process; in bfloat16 with float32 masters of the adapters."""

from __future__ import annotations

from typing import Any

import torch
from kit.adapters import ADAMW, build, loss_of
from kit.child import serve, settings, take_stdout
from torch import nn


def train(wanted: dict[str, Any]) -> dict[str, Any]:
    """The loss of each step."""
    model = build(wanted)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    masters = [nn.Parameter(parameter.detach().clone().float()) for parameter in trainable]
    optimizer = torch.optim.AdamW(masters, **ADAMW)
    losses = []
    for step in range(wanted["steps"]):
        loss = loss_of(model, step)
        loss.backward()
        for parameter, master in zip(trainable, masters, strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(trainable, masters, strict=True):
                parameter.copy_(master)
        losses.append(loss.item())
    return {"losses": losses}


def main() -> None:
    """Measures on request until told to stop."""
    replies = take_stdout()
    wanted = settings()
    serve(replies, lambda: train(wanted))


if __name__ == "__main__":
    main()
