"""Seconds of this machine for the kernels of a model: each product and each other kernel of a layer, by its shape.

`python -m luwu.probe.kernels` is one of as many processes as a run has workers. It has a worker's environment,
reads a `Wanted` from standard input and says so, waits for a line, and prints a `KernelSeconds`; the line makes all
begin together, because workers share caches and memory bandwidth. The model itself is never built: a layer's time is
the sum of its kernels', each as often as the layer calls it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from luwu.core.native import copy_past_cache
from luwu.models.shapes import ModelShape, matrices, products
from luwu.probe.kernel_times import KernelSeconds, KernelsWanted
from luwu.worker.tiled_loss import tiled_cross_entropy

FEWEST_REPEATS = 3
WARM_REPEATS = 1
COPIED_BYTES = 4 << 20
"""Bytes of a timed copy, as of a matrix's gradient: in a cache when it is handed over, unlike its target."""

COPY_TARGETS = 32


@dataclass(frozen=True)
class Kernel:
    """A kind of kernel: its arguments, and the number of calls in a layer."""

    name: str
    calls: float
    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True)
class Timed:
    """Seconds of one call."""

    forward: float
    backward: float


class Clock:
    """Timer of kernels, with a fixed time for each."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def both_ways(self, kernel: Kernel) -> Timed:
        """Return the seconds of a forward, and of the gradients of all inputs that have some."""
        wanted = [each for each in kernel.inputs if each.requires_grad]
        if not wanted:
            return Timed(self.call(lambda: kernel.function(*kernel.inputs)), 0.0)
        gradient: Tensor | None = None
        forward, backward = [], []
        for started in self._rounds():
            output = kernel.function(*kernel.inputs)
            middle = time.perf_counter()
            if gradient is None:
                gradient = torch.randn_like(output)
            before = time.perf_counter()
            torch.autograd.grad(output, wanted, gradient)
            backward.append(time.perf_counter() - before)
            forward.append(middle - started)
        return Timed(statistics.median(forward[WARM_REPEATS:]), statistics.median(backward[WARM_REPEATS:]))

    def call(self, function: Callable[[], object]) -> float:
        """Return the seconds of one call."""
        found = []
        for started in self._rounds():
            function()
            found.append(time.perf_counter() - started)
        return statistics.median(found[WARM_REPEATS:])

    def _rounds(self) -> Iterator[float]:
        begin = time.perf_counter()
        done = 0
        while done < WARM_REPEATS + FEWEST_REPEATS or time.perf_counter() - begin < self._seconds:
            yield time.perf_counter()
            done += 1


class Shapes:
    """Random tensors of a model's shapes."""

    def __init__(self, model: ModelShape, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype

    def layer(self, rows: int) -> list[Kernel]:
        """The kernels of one layer on ``rows`` sequences; the last product comes last, before those of adapters."""
        model = self._model
        tokens = rows * model.sequence
        norm = Kernel("norm", 2, self._norm, (self._random(tokens, model.hidden), *self._norm_weights()))
        add = Kernel("add", 2, torch.add, (self._random(tokens, model.hidden), self._random(tokens, model.hidden)))
        heads = model.heads + 2 * model.key_value_heads
        mixed = self._random(rows, model.sequence, heads * model.head_width)
        inside = [self._random(tokens * model.experts_per_token, model.feed_forward) for _ in range(1 + model.gated)]
        others = [
            norm,
            add,
            Kernel("attention", 1, self._attend, (mixed,)),
            Kernel("activation", 1, gated_activation if model.gated else functional.gelu, tuple(inside)),
        ]
        multiplied = [
            Kernel(
                "product",
                1,
                functional.linear,
                (self._random(max(1, round(tokens * share)), round(inner)), self._weight(round(columns), round(inner))),
            )
            for columns, inner, share in products(model)
        ]
        return others + multiplied + (self._adapters(tokens) if model.lora_rank else [])

    def _adapters(self, tokens: int) -> list[Kernel]:
        """The kernels of a layer's adapters, as peft has them: each adds to what its matrix gives."""
        rank, found = self._model.lora_rank, []
        for columns, inner, share in matrices(self._model):
            rows = max(1, round(tokens * share))
            values = self._random(rows, columns), self._random(rows, inner)
            found.append(
                Kernel("adapter", 1, add_adapter, (*values, self._random(rank, inner), self._random(columns, rank)))
            )
        return found

    def root(self, rows: int) -> list[Kernel]:
        """Return the kernels outside the layers: the embedding, the last norm, and the head with its loss."""
        model = self._model
        tokens = rows * model.sequence
        ids = torch.randint(model.vocabulary, (rows, model.sequence))
        table = self._weight(model.vocabulary, model.hidden)
        places = (self._weight(model.sequence, model.hidden),) if model.positions else ()

        def embed(table: Tensor, *places: Tensor) -> Tensor:
            found = functional.embedding(ids, table)
            return found + functional.embedding(torch.arange(model.sequence), places[0]) if places else found

        def loss(hidden: Tensor, table: Tensor) -> Tensor:
            return tiled_cross_entropy(hidden, table, ids.flatten())

        hidden = self._random(tokens, model.hidden)
        return [
            Kernel("embedding", 1, embed, (table, *places)),
            Kernel("norm", 1, self._norm, (hidden, *self._norm_weights())),
            Kernel("head", 1, loss, (hidden, table)),
        ]

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(*shape).to(self._dtype).requires_grad_()

    def _weight(self, *shape: int) -> Tensor:
        """A parameter of the model, which is frozen beside adapters."""
        return self._random(*shape).requires_grad_(not self._model.lora_rank)

    def _norm_weights(self) -> tuple[Tensor, ...]:
        return tuple(self._weight(self._model.hidden) for _ in range(self._model.norm_vectors))

    def _norm(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            return functional.rms_norm(hidden, (self._model.hidden,), weight)
        return functional.layer_norm(hidden, (self._model.hidden,), weight, bias)

    def _attend(self, mixed: Tensor) -> Tensor:
        """Compute attention on queries, keys and values as one projection leaves them."""
        model, (rows, tokens, _) = self._model, mixed.shape
        parts = mixed.view(rows, tokens, -1, model.head_width).transpose(1, 2)
        query, key, value = parts.split([model.heads, model.key_value_heads, model.key_value_heads], dim=1)
        repeats = model.heads // model.key_value_heads
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return found.transpose(1, 2).reshape(rows, tokens, -1)


def gated_activation(gate: Tensor, value: Tensor) -> Tensor:
    """Return the activation of gated networks."""
    return functional.silu(gate) * value


def add_adapter(base: Tensor, inputs: Tensor, narrow: Tensor, wide: Tensor) -> Tensor:
    """Return a matrix's product with its LoRA adapter's added, scaled by 2."""
    return base + functional.linear(functional.linear(inputs, narrow), wide) * 2.0


def time_kernels(wanted: KernelsWanted) -> KernelSeconds:
    """All kernels of a model, with as many threads as torch has here."""
    torch.manual_seed(0)
    clock = Clock(wanted.seconds)
    dtype = getattr(torch, wanted.dtype)
    shapes = Shapes(wanted.shape(), dtype)
    slice_rows = min(wanted.rows, wanted.micro_batch or wanted.rows)
    layer = [(kernel, clock.both_ways(kernel)) for kernel in shapes.layer(slice_rows)]
    root = {kernel.name: clock.both_ways(kernel) for kernel in shapes.root(wanted.rows)}
    add = next(timed for kernel, timed in layer if kernel.name == "add")
    last = next(timed for kernel, timed in reversed(layer) if kernel.name == "product")
    return KernelSeconds(
        layer_forward=sum(kernel.calls * timed.forward for kernel, timed in layer),
        # Gradients of a value that is used twice are added up, which autograd does by itself.
        layer_backward=sum(kernel.calls * timed.backward for kernel, timed in layer) + 2 * add.forward,
        last_product=last.forward + add.forward,
        root_forward=sum(timed.forward for timed in root.values()),
        root_backward=sum(timed.backward for timed in root.values()),
        copy_rate=_copy_rate(clock),
        sum_rate=_sum_rate(clock, dtype),
        memory_rate=_memory_rate(clock),
        products={
            f"{kernel.inputs[0].shape[0]} x {kernel.inputs[1].shape[1]} x {kernel.inputs[1].shape[0]}": _rate(
                kernel, timed
            )
            for kernel, timed in layer
            if kernel.name == "product"
        },
    )


def _rate(kernel: Kernel, timed: Timed) -> float:
    """Flop a second of a product and those of its gradients."""
    rows, inner = kernel.inputs[0].shape
    products = 1 + sum(each.requires_grad for each in kernel.inputs)
    return products * 2.0 * rows * inner * kernel.inputs[1].shape[0] / (timed.forward + timed.backward)


def _copy_rate(clock: Clock) -> float:
    """Bytes a second of gradients that are handed over."""
    source = torch.ones(COPIED_BYTES // 4)
    targets = torch.empty(COPY_TARGETS, COPIED_BYTES // 4)

    def copy() -> None:
        for target in targets:
            copy_past_cache(target, source)

    return COPY_TARGETS * COPIED_BYTES / clock.call(copy)


def _sum_rate(clock: Clock, dtype: torch.dtype) -> float:
    """Elements a second of gradients of slices that are added up in float32."""
    source = torch.ones(COPIED_BYTES // 4, dtype=dtype)
    targets = torch.zeros(COPY_TARGETS, COPIED_BYTES // 4)

    def add() -> None:
        for target in targets:
            target.add_(source)

    return targets.numel() / clock.call(add)


def _memory_rate(clock: Clock) -> float:
    """Bytes a second that a copy reads and writes together, past every cache."""
    elements = COPY_TARGETS * COPIED_BYTES // 4
    source, target = torch.ones(elements), torch.empty(elements)
    return 2 * 4 * elements / clock.call(lambda: target.copy_(source))


def main() -> None:
    """Measure when standard input says so."""
    wanted = KernelsWanted.model_validate_json(sys.stdin.readline())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(time_kernels(wanted).model_dump_json() + "\n")


if __name__ == "__main__":
    main()
