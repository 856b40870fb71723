"""The sides of optimizer_memory: AdamW in memory, by luwu's kernel and by torch in several ways.

Mixed precision unless said otherwise: bf16 gradient in; fp32 master, m and v; bf16 copy out. A side is a function that
does one whole update. All sides work on the same buffers, because where in memory a buffer lies is worth 5 % and more.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping

import torch

from kit.common import BenchmarkError
from kit.model import ADAMW

Update = Callable[[], object]
WORKERS = 4
PAUSE_SECONDS = 0.03  # OpenMP threads spin for some milliseconds after their work: not in the next side's time

OURS = "luwu"
OURS_SUMMING = f"luwu, {WORKERS} gradients"
EAGER = "torch eager"
EAGER_KEPT = "torch eager, kept gradient buffer"
EAGER_SUMMING = f"torch eager, {WORKERS} gradients"
COMPILED = "torch.compile"
FUSED = "torch fused fp32"


class Sides:
    """Gradients and first values for `elements` parameters, and the updates that work on them with some threads.

    Args:
        elements: number of parameters.
        backend: of torch.compile; ``eager`` only traces, in a tenth of the time.
    """

    def __init__(self, elements: int, backend: str) -> None:
        self._backend = backend
        generator = torch.Generator().manual_seed(1)
        self._gradients = [torch.randn(elements, generator=generator).bfloat16() for _ in range(WORKERS)]
        self._master = torch.randn(elements, generator=generator)
        self._m, self._v = torch.zeros(elements), torch.zeros(elements)
        self._low = self._master.bfloat16()

    def luwu(self, threads: int) -> dict[str, Update]:
        """The kernel of luwu: with one gradient, and with several summed on the way."""
        try:
            from luwu import _native_testing
        except ImportError as error:
            raise BenchmarkError(f"luwu is not installed in this Python: {error}") from error
        master, low = self._master.numpy(), self._low.view(torch.uint16).numpy()
        states = [self._m.numpy(), self._v.numpy()]
        hyper_parameters = [ADAMW["lr"], *ADAMW["betas"], ADAMW["eps"], ADAMW["weight_decay"]]
        gradients = [gradient.view(torch.uint16).numpy() for gradient in self._gradients]
        steps = itertools.count(1)

        def update(workers: int) -> None:
            finite = _native_testing.optimizer_update(
                "adamw", master, states, low, gradients[:workers], "bfloat16", 1.0, hyper_parameters, next(steps),
                threads,
            )  # fmt: skip
            if not finite:
                raise BenchmarkError("luwu took a finite gradient for one that is not")

        return {OURS: lambda: update(1), OURS_SUMMING: lambda: update(WORKERS)}

    def torch_eager(self, threads: int) -> dict[str, Update]:
        """The fused AdamW of torch between a cast up and a cast down; alone, on fp32, it is the reference."""
        master = torch.nn.Parameter(self._master)
        kept, scratch = torch.zeros_like(self._master), torch.zeros_like(self._master)
        optimizer = torch.optim.AdamW([master], fused=True, **ADAMW)
        optimizer.state[master] = {"step": torch.tensor(0.0), "exp_avg": self._m, "exp_avg_sq": self._v}

        def finish(gradient: torch.Tensor) -> None:
            master.grad = gradient
            optimizer.step()
            self._low.copy_(self._master)

        def update_with_kept_buffer() -> None:
            finish(kept.copy_(self._gradients[0]))

        def sum_and_update() -> None:  # kept buffers: faster than temporaries, or than adding bf16 to fp32
            kept.copy_(self._gradients[0])
            for gradient in self._gradients[1:]:
                kept.add_(scratch.copy_(gradient))
            finish(kept)

        def update_fp32() -> None:
            master.grad = kept
            optimizer.step()

        updates = {
            EAGER: lambda: finish(self._gradients[0].float()),
            EAGER_KEPT: update_with_kept_buffer,
            EAGER_SUMMING: sum_and_update,
            FUSED: update_fp32,
        }
        return {name: _with_threads(threads, update) for name, update in updates.items()}

    def torch_compile(self, threads: int) -> dict[str, Update]:
        """The same mathematics written plainly and compiled, which gives one loop over all buffers."""
        steps = itertools.count(1)
        options = {"cpp.threads": threads} if self._backend == "inductor" else None
        compiled = torch.compile(_plain_adamw, fullgraph=True, backend=self._backend, options=options)

        def update() -> None:
            t = next(steps)
            beta1, beta2 = ADAMW["betas"]
            step_size = torch.tensor(ADAMW["lr"] / (1 - beta1**t))
            root = torch.tensor((1 - beta2**t) ** 0.5)
            compiled(self._master, self._m, self._v, self._low, self._gradients[0], step_size, root)

        return {COMPILED: _with_threads(threads, update)}


def timed(update: Update) -> Callable[[], float]:
    """Return a function that does the update and returns the seconds it took."""

    def measure() -> float:
        started = time.perf_counter()
        update()
        return time.perf_counter() - started

    return measure


def take_each(measures: Mapping[str, Callable[[], float]], order: Iterable[str]) -> dict[str, float]:
    """Return the seconds of every side, measured in this order, each after a pause for the one before."""
    values = {}
    for name in order:
        time.sleep(PAUSE_SECONDS)
        values[name] = measures[name]()
    return {name: values[name] for name in measures}


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
    """Make a step of AdamW; scalars that change from step to step are tensors, so nothing is compiled again."""
    beta1, beta2 = ADAMW["betas"]
    wide = gradient.float()
    master.mul_(1 - ADAMW["lr"] * ADAMW["weight_decay"])
    m.lerp_(wide, 1 - beta1)
    v.mul_(beta2).addcmul_(wide, wide, value=1 - beta2)
    master.sub_(step_size * m / (v.sqrt() / root + ADAMW["eps"]))
    low.copy_(master)
