"""Advice on a plan: the tokens a step from which copies, server and disk are hidden, and the batch to take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from luwu.plan.compute import Kernels
from luwu.plan.constants import FP32_SLOWDOWN
from luwu.plan.durability import traffic_of
from luwu.plan.hiding import Compute, Needs, Thresholds, offload_ratio, thresholds
from luwu.plan.luwu_step import ServerWork, Traffic
from luwu.plan.memory import luwu_worker
from luwu.plan.planning import Plan, Request, make_plan, variant_of, with_rows

SETTLED = 64
"""Number of batches that are tried before the search gives up: a larger batch leaves less memory to keep states in."""


@dataclass(frozen=True)
class Advice:
    """The smallest batch that hides everything, in the largest slices that the GPU has memory for.

    Attributes:
        plan: with that batch; where none that fits hides everything, with the largest that fits.
        thresholds: thresholds of that plan.
    """

    plan: Plan
    thresholds: Thresholds

    @property
    def batch(self) -> int:
        """Sequences of all workers."""
        return self.plan.request.settings.run.batch

    @property
    def micro_batch(self) -> int:
        """Sequences that a worker computes at a time."""
        return self.plan.request.settings.run.micro_batch or self.plan.request.rows

    @property
    def tokens(self) -> int:
        """Tokens of each worker, a step."""
        return tokens_of(self.plan)

    @property
    def bottleneck(self) -> str:
        """Name of the part that needs the most tokens to be hidden."""
        return self.thresholds.bottleneck

    @property
    def exposed(self) -> list[str]:
        """Names of the parts that are not hidden by the recommended batch."""
        return self.thresholds.exposed(self.tokens)


def tokens_of(plan: Plan) -> int:
    """Tokens of each worker, a step."""
    return plan.request.rows * plan.request.model.sequence


def compute_of(request: Request) -> Compute:
    """Return a worker's computation at the rate that its GPU's matrix products sustain."""
    model, gpu, run = request.model, request.cluster.gpu, request.settings.run
    slowdown = FP32_SLOWDOWN.value if run.dtype == "float32" and gpu.units else 1
    active = model.active_layer_size / model.layer_size
    return Compute(gpu.matrix_flops / slowdown, active, run.checkpoint, trained=not model.lora_rank)


def thresholds_of(plan: Plan) -> Thresholds:
    """Tokens from which on each is hidden, with what this plan keeps in memory."""
    request, cluster = plan.request, plan.request.cluster
    model, variant = request.model, variant_of(request)
    size = float(model.parameters)
    copy = variant.parameter_bytes / cluster.gpu.host_rate
    network = Traffic.of(cluster, model, variant)
    work = ServerWork.of(cluster, model, traffic_of(plan.server, plan.commits.records_bytes), variant)
    return thresholds(
        compute_of(request),
        Needs(
            down=max(copy, network.pull_seconds / size),
            up=max(copy * model.trained_parameters / size, network.push_seconds / size),
            update=_updating(work.backward) / size,
            update_forward=_updating(work.forward) / size,
            disk_forward=work.forward["disk"] / size,
            disk_backward=work.backward["disk"] / size,
            disk_late=work.late_writes / size,
        ),
    )


def _updating(parts: Mapping[str, float]) -> float:
    return max(parts["server memory"], parts.get("update", 0.0))


def offload_shares(plan: Plan) -> tuple[float, float]:
    """Return a layer's parameters over its width, and the least ratio at which copies of layers' inputs are hidden."""
    request, element = plan.request, variant_of(plan.request).parameter_bytes
    ratio = offload_ratio(compute_of(request), request.cluster.gpu.host_rate, element)
    return request.model.layer_size / request.model.hidden, ratio


def advise(plan: Plan) -> Advice | None:
    """Recommend batch and micro-batch; None: no batch fits.

    A larger batch hides more, and on one machine takes memory from the server, so that the disk has more to do: the
    search goes up from one sequence to the first batch that hides what is left.
    """
    found, rows = None, 1
    for _ in range(SETTLED):
        tried = _with_rows(plan, rows)
        if tried is None:
            break
        found = tried
        needed = math.ceil(found.thresholds.everything / plan.request.model.sequence)
        if needed <= rows:
            return found
        rows = needed
    return found and _largest_below(plan, found, rows)


def _largest_below(plan: Plan, found: Advice, rows: int) -> Advice:
    """Return the largest batch that fits, between one that does and one that does not."""
    least, most = found.plan.request.rows, rows
    while most - least > 1:
        middle = (least + most) // 2
        tried = _with_rows(plan, middle)
        if tried is None:
            most = middle
        else:
            found, least = tried, middle
    return found


def _with_rows(plan: Plan, rows: int) -> Advice | None:
    """Return the advice for this number of sequences a worker, in slices that fit the GPU; None if they do not fit."""
    micro_batch = largest_slice(plan.request, rows)
    if micro_batch is None:
        return None
    tried = make_plan(with_rows(plan.request, rows, None if micro_batch == rows else micro_batch))
    return Advice(tried, thresholds_of(tried)) if tried.fits else None


def largest_slice(request: Request, rows: int) -> int | None:
    """The largest power of two of a worker's rows that its GPU has memory for at once; None: not even one row.

    Pinned memory is handed out by powers of two, and widths are powers of two or a few times one.
    """
    run, at_once = request.settings.run, 1 << (rows.bit_length() - 1)
    while at_once >= 1:
        memory = luwu_worker(
            request.model, rows, Kernels(float32=run.dtype == "float32"), micro_batch=at_once,
            offload=run.offload is not None, checkpoint=run.checkpoint,
        )  # fmt: skip
        if memory.gpu_bytes <= request.cluster.gpu.memory_bytes:
            return at_once
        at_once //= 2
    return None
