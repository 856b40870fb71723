"""Compute time of a GPU: GEMMs by their tiles, everything else by the bytes it moves.

The classes of kernels follow arXiv 2205.05198 (what a layer keeps and moves) and NVIDIA's guide to GEMMs: a product is
cut into tiles that the GPU's units take in waves, and the last wave is seldom full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from luwu.models.shapes import ModelShape, matrices, products
from luwu.plan.constants import FP32_SLOWDOWN, GEMM_FILL, GEMM_TILE, LOSS_BYTES_PER_LOGIT, MEMORY_SHARE
from luwu.plan.gpus import Gpu

ELEMENT_BYTES = 2  # bf16 or fp16
ADAPTER_MOVES = 5  # elements of a result that scaling it (2) and adding it (3) read and write

Attention = Literal["fused", "unfused"]
"""Kind of attention.

Fused: like FlashAttention, scores never reach memory; unfused: they do, a fused softmax between.
"""


@dataclass(frozen=True)
class LayerSeconds:
    """Seconds of one layer for one micro-batch: forward (and recompute), and backward without it."""

    forward: float
    backward: float


@dataclass(frozen=True)
class Kernels:
    """Kernels of a framework for one layer.

    ``fused``: bias, dropout and residual in one kernel (Megatron's); otherwise one each (torch, eager).
    """

    attention: Attention = "fused"
    fused: bool = False
    float32: bool = False


def gemm_seconds(gpu: Gpu, rows: float, columns: float, inner: float, *, float32: bool = False) -> float:
    """Time of a product [rows, inner] x [inner, columns]: whichever of tiles and memory takes longer."""
    rate = gpu.matrix_flops / (FP32_SLOWDOWN.value if float32 and gpu.units else 1)
    flop = 2.0 * rows * columns * inner
    size = ELEMENT_BYTES * (2 if float32 else 1)
    moved = size * (rows * inner + inner * columns + rows * columns)
    fill = inner / (inner + GEMM_FILL.value) if gpu.units else 1.0
    return max(flop / (rate * fill * _wave_share(gpu, rows, columns)), moved / (gpu.memory_rate * MEMORY_SHARE.value))


def layer_seconds(model: ModelShape, gpu: Gpu, rows: int, kernels: Kernels, tensor_parallel: int = 1) -> LayerSeconds:
    """Return the seconds of a layer on ``rows`` sequences, cut over ``tensor_parallel`` GPUs, without exchanges."""
    tokens = rows * model.sequence
    forward = backward = 0.0
    for columns, inner, share in products(model, tensor_parallel):
        times = _product_seconds(gpu, tokens * share, columns, inner, kernels, trained=not model.lora_rank)
        forward, backward = forward + times.forward, backward + times.backward
    if model.lora_rank:
        adapters = _adapter_seconds(model, gpu, tokens, kernels)
        forward, backward = forward + adapters.forward, backward + adapters.backward
    moved = tokens * _moved_bytes(model, kernels, tensor_parallel) * (2 if kernels.float32 else 1)
    elementwise = moved / (gpu.memory_rate * MEMORY_SHARE.value)
    scores = _attention_seconds(model, gpu, tokens, kernels, tensor_parallel)
    return LayerSeconds(forward + scores + elementwise, backward + 2 * scores + 2 * elementwise)


def head_seconds(
    model: ModelShape, gpu: Gpu, rows: int, tensor_parallel: int = 1, *, float32: bool = False
) -> LayerSeconds:
    """The projection to the vocabulary and the loss. Beside adapters it is frozen."""
    tokens, columns = rows * model.sequence, model.vocabulary / tensor_parallel
    product = gemm_seconds(gpu, tokens, columns, model.hidden, float32=float32)
    loss = tokens * columns * LOSS_BYTES_PER_LOGIT.value / (gpu.memory_rate * MEMORY_SHARE.value)
    return LayerSeconds(product + loss / 2, (1 if model.lora_rank else 2) * product + loss / 2)


def _product_seconds(
    gpu: Gpu, rows: float, columns: float, inner: float, kernels: Kernels, *, trained: bool
) -> LayerSeconds:
    """A product with a weight matrix, the gradient of its input, and that of the matrix where it is trained."""
    backward = gemm_seconds(gpu, rows, inner, columns, float32=kernels.float32)
    if trained:
        backward += gemm_seconds(gpu, columns, inner, rows, float32=kernels.float32)
    return LayerSeconds(gemm_seconds(gpu, rows, columns, inner, float32=kernels.float32), backward)


def _adapter_seconds(model: ModelShape, gpu: Gpu, tokens: int, kernels: Kernels) -> LayerSeconds:
    """Two thin products beside each matrix, and a kernel that scales their result and one that adds it."""
    forward = backward = 0.0
    for columns, inner, share in matrices(model):
        rows = tokens * share
        for wide, narrow in ((model.lora_rank, inner), (columns, model.lora_rank)):
            times = _product_seconds(gpu, rows, wide, narrow, kernels, trained=True)
            forward, backward = forward + times.forward, backward + times.backward
        moved = ADAPTER_MOVES * rows * columns * ELEMENT_BYTES * (2 if kernels.float32 else 1)
        forward += moved / (gpu.memory_rate * MEMORY_SHARE.value)
        backward += moved / (gpu.memory_rate * MEMORY_SHARE.value)
    return LayerSeconds(forward, backward)


def _attention_seconds(model: ModelShape, gpu: Gpu, tokens: int, kernels: Kernels, parallel: int) -> float:
    """Scores and mixing: for unfused attention two products over all heads, and the scores' way through memory."""
    heads, width = model.heads / parallel, model.head_width
    if kernels.attention == "fused":
        rate = gpu.matrix_flops / (FP32_SLOWDOWN.value if kernels.float32 and gpu.units else 1)
        return 4.0 * tokens * model.sequence * heads * width / rate
    rows = tokens * heads
    products = gemm_seconds(gpu, rows, model.sequence, width, float32=kernels.float32)
    products += gemm_seconds(gpu, rows, width, model.sequence, float32=kernels.float32)
    # Softmax reads 2 and writes 2; dropout reads 2, writes 2 and a mask of 1.
    moved = 9.0 * rows * model.sequence * (2 if kernels.float32 else 1)
    return products + moved / (gpu.memory_rate * MEMORY_SHARE.value)


def _moved_bytes(model: ModelShape, kernels: Kernels, parallel: int) -> float:
    """Bytes that a forward's element-wise kernels move per token, in elements of two bytes.

    Norms, dropout and residuals are whole on each GPU; what is as wide as the network's inside is divided.
    """
    inside = model.feed_forward * model.experts_per_token / parallel
    activation = inside * (6 if model.gated else 4)  # read (two where gated), write
    if kernels.fused:  # two norms at 4, two of bias, dropout, residual and mask at 7
        return model.hidden * (2 * 4 + 2 * 7) + activation
    # Two norms at 4, two dropouts at 5, two residuals at 6; scaling and transposing of queries, keys and values 20.
    return model.hidden * (2 * 4 + 2 * 5 + 2 * 6) + model.hidden * 20 / parallel + activation


def _wave_share(gpu: Gpu, rows: float, columns: float) -> float:
    """Return the useful part of the units' time: full tiles of the better orientation, in whole waves."""
    if not gpu.units:
        return 1.0
    small = GEMM_TILE.value
    best = 0.0
    for high, wide in ((small, 2 * small), (2 * small, small)):
        tiles = math.ceil(rows / high) * math.ceil(columns / wide)
        waves = math.ceil(tiles / gpu.units)
        best = max(best, rows * columns / (waves * gpu.units * high * wide))
    return best
