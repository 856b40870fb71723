"""The sides of optimizer_memory: AdamW on the same buffers in memory, by luwu's kernel and by torch in several ways.

A side is a function that does one whole update. Buffers are allocated by torch on every side, and gradients are shared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from model import ADAMW

Update = Callable[[], object]
WORKERS = 4


class Sides:
    """Buffers for `elements` parameters and the updates that work on them, each with a number of threads."""

    def __init__(self, elements: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self._elements = elements
        self._first = torch.randn(elements, generator=generator)
        self._gradients = [torch.randn(elements, generator=generator).bfloat16() for _ in range(WORKERS)]

    def _states(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Master, m, v, and the bf16 copy."""
        master = self._first.clone()
        return master, torch.zeros_like(master), torch.zeros_like(master), master.bfloat16()

    def luwu(self, threads: int) -> dict[str, Update]:
        """Luwu's kernel: with one gradient, and with four summed on the way."""
        from luwu import _native

        master, m, v, low = self._states()
        arrays = [master.numpy(), m.numpy(), v.numpy(), low.view(torch.uint16).numpy()]
        gradients = [gradient.view(torch.uint16).numpy() for gradient in self._gradients]
        steps = itertools.count(1)

        def update(workers: int) -> None:
            finite = _native.adamw_update(
                *arrays, gradients[:workers], "bfloat16", 1.0, ADAMW["lr"], *ADAMW["betas"], ADAMW["eps"],
                ADAMW["weight_decay"], next(steps), threads,
            )  # fmt: skip
            if not finite:
                raise AssertionError("a finite gradient was reported not to be")

        return {"luwu": lambda: update(1), f"luwu, {WORKERS} gradients": lambda: update(WORKERS)}

    def torch_eager(self, threads: int) -> dict[str, Update]:
        """Torch's fused AdamW between a cast up and a cast down; param.grad is allocated once, to torch's advantage."""
        master = torch.nn.Parameter(self._first.clone())
        master.grad = gradient = torch.zeros_like(master)
        low = master.detach().bfloat16()
        optimizer = torch.optim.AdamW([master], fused=True, **ADAMW)

        def finish() -> None:
            optimizer.step()
            low.copy_(master.detach())

        def one() -> None:
            gradient.copy_(self._gradients[0])
            finish()

        def four() -> None:
            gradient.copy_(self._gradients[0])
            for other in self._gradients[1:]:
                gradient.add_(other)
            finish()

        return {
            "torch eager": _with_threads(threads, one),
            f"torch eager, {WORKERS} gradients": _with_threads(threads, four),
            "torch fused fp32": _with_threads(threads, optimizer.step),
        }

    def torch_compile(self, threads: int) -> dict[str, Update]:
        """The same mathematics written plainly and compiled: one loop over all buffers."""
        states = self._states()
        steps = itertools.count(1)
        compiled = torch.compile(_plain_adamw, fullgraph=True, options={"cpp.threads": threads})

        def update() -> None:
            t = next(steps)
            beta1, beta2 = ADAMW["betas"]
            step_size = torch.tensor(ADAMW["lr"] / (1 - beta1**t))
            root = torch.tensor((1 - beta2**t) ** 0.5)
            compiled(*states, self._gradients[0], step_size, root)

        return {"torch.compile": _with_threads(threads, update)}


def _with_threads(threads: int, update: Update) -> Update:
    def run() -> None:
        torch.set_num_threads(threads)
        update()

    return run


@torch.no_grad()
def _plain_adamw(
    master: torch.Tensor, m: torch.Tensor, v: torch.Tensor, low: torch.Tensor, gradient: torch.Tensor,
    step_size: torch.Tensor, root: torch.Tensor,
) -> None:  # fmt: skip
    beta1, beta2 = ADAMW["betas"]
    up = gradient.float()
    master.mul_(1 - ADAMW["lr"] * ADAMW["weight_decay"])
    m.lerp_(up, 1 - beta1)
    v.mul_(beta2).addcmul_(up, up, value=1 - beta2)
    master.sub_(step_size * m / (v.sqrt() / root + ADAMW["eps"]))
    low.copy_(master)


def all_updates(elements: int, threads: int, only_peer: bool) -> dict[str, Any]:
    """Every side's updates by name."""
    sides = Sides(elements)
    ours = {} if only_peer else sides.luwu(threads)
    return ours | sides.torch_eager(threads) | sides.torch_compile(threads)
