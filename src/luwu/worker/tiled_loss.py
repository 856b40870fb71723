"""The loss of a language model's head, computed tile by tile: the logits of the whole batch never exist.

The gradient of a tile's logits is computed right after them and turned into gradients of the head's input and weight,
so that nothing of the tile has to stay (the idea of Liger Kernel's fused linear cross entropy: Hsu et al., 2024,
arXiv:2410.10989; Wijmans et al., 2024, arXiv:2411.09009, go further, inside one kernel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from luwu.core.errors import ConfigError
from luwu.worker.loss_scale import forward_scale
from luwu.worker.watched import use_by_name

_TILE_ELEMENTS = 1 << 23
"""Default of the logits in a tile: 32 MiB of float32, which a CPU's cache holds."""

_DEVICE_TILE_ELEMENTS = 1 << 27
"""Elements of a tile on a GPU: 512 MiB of float32. Each tile reads the whole weight and adds to its gradient."""

Transform = Callable[[Tensor], Tensor]
"""Function applied to logits [rows, classes] before their loss is taken."""


def tiled_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    tile_rows: int | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum"] = "mean",
    transform: Transform | None = None,
) -> Tensor:
    """Cross entropy of ``transform(linear(hidden, weight, bias))``, as torch.nn.functional.cross_entropy has it.

    Logits, and autograd's copies of them, exist for one tile of rows at a time. Sums are float32 (float64 for
    float64 inputs) and rounded to their inputs' dtypes once. Gradients are computed along with the loss where autograd
    is on, so a backward costs next to nothing.

    Args:
        hidden: input of the head, [..., width].
        weight: weight of the head, [classes, width]: a parameter, such as ``model.lm_head.weight``; may be tied.
        targets: int64 class indices, of the shape of ``hidden`` without its last dimension.
        bias: bias of the head, [classes].
        tile_rows: rows of logits to compute at a time; None: as many as make a tile of 32 MiB in float32 on a CPU, of
            512 MiB on a GPU.
        ignore_index: targets of this value do not count.
        label_smoothing: share of every target that is spread evenly over all classes, from 0 to 1.
        reduction: ``mean`` over the targets that count (NaN if none does), or ``sum``.
        transform: function of logits [rows, classes] to as many, such as a scale or a soft cap, each row for itself;
            called for every tile. Gradients go through it, but not to tensors that it brings along.

    Returns:
        The loss, a scalar in nats, float32 or float64.

    Raises:
        ConfigError: shapes, dtypes or values that do not fit together.
    """
    rows_of_a_tile = default_tile_rows(weight.device, weight.size(0)) if tile_rows is None else tile_rows
    options = _Options(rows_of_a_tile, ignore_index, label_smoothing, transform)
    _check(hidden, weight, targets, bias, options, reduction)
    counts = targets != ignore_index
    divisor = counts.sum() if reduction == "mean" else torch.ones((), dtype=torch.int64, device=targets.device)
    wants_gradients = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)
    )
    rows = hidden.reshape(-1, hidden.size(-1))

    def compute() -> Tensor:
        loss: Tensor = _TiledCrossEntropy.apply(
            rows, weight, bias, targets.reshape(-1), divisor, options, wants_gradients
        )
        return loss

    return use_by_name((weight, bias), compute, rows)


def default_tile_rows(device: torch.device, classes: int) -> int:
    """Rows of logits in a tile on this device."""
    elements = _TILE_ELEMENTS if device.type == "cpu" else _DEVICE_TILE_ELEMENTS
    return max(1, elements // max(1, classes))


@dataclass(frozen=True)
class _Options:
    tile_rows: int
    ignore_index: int
    label_smoothing: float
    transform: Transform | None


class _TiledCrossEntropy(torch.autograd.Function):
    """Autograd function of the loss: ``divisor`` divides the sum over all rows; only the finished gradients are saved.

    They are those of the scaled loss, because float16 would lose the small ones of the loss itself.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, divisor: Tensor,
        options: _Options, wants_gradients: bool,
    ) -> Tensor:  # fmt: skip
        sums_dtype = torch.promote_types(hidden.dtype, torch.float32)
        total = torch.zeros((), dtype=sums_dtype, device=hidden.device)
        gradients: _Gradients | None = None
        if wants_gradients:
            gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad, sums_dtype)
        ctx.loss_scale = forward_scale()
        scale = divisor.to(sums_dtype).reciprocal() * ctx.loss_scale
        for tile in _tiles(targets.numel(), options.tile_rows):
            logits = functional.linear(hidden[tile], weight, bias)
            found = _transformed(logits, options.transform, wants_gradients)
            loss, gradient = _tile_loss(
                found.detach().to(sums_dtype), targets[tile], options, scale if gradients else None
            )
            total += loss
            if gradients is not None and gradient is not None:
                if found is not logits:
                    (gradient,) = torch.autograd.grad(found, logits, gradient.to(found.dtype))
                gradients.add(tile, gradient)
        ctx.dtypes = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.save_for_backward(*(gradients.found() if gradients else ()))
        return total / divisor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradient = gradient / ctx.loss_scale
        scaled = [
            None if found is None else torch.mul(found, gradient, out=torch.empty_like(found, dtype=dtype))
            for found, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *scaled, None, None, None, None


class _Gradients:
    """Gradients of the head's input, weight and bias, as far as they are wanted."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: tuple[bool, ...], sums_dtype: torch.dtype
    ) -> None:
        self._hidden = hidden
        self._weight = weight
        self._of_hidden = torch.empty_like(hidden) if wanted[0] else None
        self._of_weight = torch.zeros_like(weight, dtype=sums_dtype) if wanted[1] else None
        self._of_bias = torch.zeros_like(bias, dtype=sums_dtype) if bias is not None and wanted[2] else None

    def add(self, tile: slice, logits_gradient: Tensor) -> None:
        """Take the gradient of a tile's logits, [rows, classes]."""
        if self._of_bias is not None:
            self._of_bias += logits_gradient.sum(0)
        rounded = logits_gradient.to(self._hidden.dtype)
        if self._of_hidden is not None:
            torch.mm(rounded, self._weight, out=self._of_hidden[tile])
        if self._of_weight is not None:
            if self._of_weight.dtype == rounded.dtype:
                self._of_weight.addmm_(rounded.t(), self._hidden[tile])
            else:
                self._of_weight += rounded.t() @ self._hidden[tile]

    def found(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the three; None where nobody wants one."""
        return self._of_hidden, self._of_weight, self._of_bias


def _transformed(logits: Tensor, transform: Transform | None, wants_gradients: bool) -> Tensor:
    """Return what the loss is of, with the way back to ``logits`` where it is wanted."""
    if transform is None:
        return logits
    with torch.set_grad_enabled(wants_gradients):
        return transform(logits.requires_grad_(wants_gradients))


def _tile_loss(
    logits: Tensor, targets: Tensor, options: _Options, scale: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the sum of a tile's losses, and, times ``scale`` if given, the gradient of its logits."""
    counts = targets != options.ignore_index
    classes = torch.where(counts, targets, 0).unsqueeze(1)
    logarithms = torch.log_softmax(logits, dim=1)
    smoothing = options.label_smoothing
    losses = logarithms.gather(1, classes).squeeze(1).neg()
    if smoothing:
        losses = (1.0 - smoothing) * losses - smoothing * logarithms.mean(1)
    loss = torch.where(counts, losses, 0.0).sum()
    if scale is None:
        return loss, None
    gradient = logarithms.exp_()
    if smoothing:
        gradient -= smoothing / gradient.size(1)
    gradient.scatter_add_(1, classes, gradient.new_full((), smoothing - 1.0).expand(classes.shape))
    gradient *= torch.where(counts, scale, 0.0).unsqueeze(1)
    return loss, gradient


def _tiles(rows: int, tile_rows: int) -> Iterator[slice]:
    return (slice(start, min(start + tile_rows, rows)) for start in range(0, rows, tile_rows))


def _check(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, options: _Options, reduction: str
) -> None:
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.size(-1) != weight.size(-1):
        raise ConfigError(
            f"weight: expected [classes, width] with the width of hidden, found {list(weight.shape)} for hidden of "
            f"{list(hidden.shape)}"
        )
    if not (hidden.dtype == weight.dtype and hidden.is_floating_point()):
        raise ConfigError(
            f"hidden: expected the floating-point dtype of weight, {weight.dtype}, found {hidden.dtype}; convert it"
        )
    if targets.shape != hidden.shape[:-1] or targets.dtype != torch.int64:
        raise ConfigError(
            f"targets: expected int64 of shape {list(hidden.shape[:-1])}, found {targets.dtype} of "
            f"{list(targets.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ConfigError(f"bias: expected shape {list(weight.shape[:1])}, found {list(bias.shape)}")
    if options.tile_rows < 1:
        raise ConfigError(f"tile_rows: expected at least 1, or None, found {options.tile_rows}")
    if not 0.0 <= options.label_smoothing <= 1.0:
        raise ConfigError(f"label_smoothing: expected 0 to 1, found {options.label_smoothing}")
    if reduction not in ("mean", "sum"):
        raise ConfigError(f"reduction: expected 'mean' or 'sum', found {reduction!r}")
    if (
        targets.device.type == "cpu" and targets.numel()
    ):  # elsewhere this would wait for the device, which checks itself
        counting = targets[targets != options.ignore_index]
        wrong = counting[(counting < 0) | (counting >= weight.size(0))]
        if wrong.numel():
            raise ConfigError(
                f"targets: expected classes from 0 to {weight.size(0) - 1}, or {options.ignore_index} for those that "
                f"do not count, found {int(wrong[0])}"
            )
