"""Search for the best setting: rows at once, memory budget, servers and disks, by throughput for a dollar."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from luwu.plan.compute import Kernels
from luwu.plan.memory import luwu_worker
from luwu.plan.planning import Plan, Request, make_plan, refuse_one_machine
from luwu.plan.requests import usual_budget

SERVERS = (1, 2, 3, 4, 6, 8, 12, 16)
DISKS = (1, 2, 4, 6, 8, 12, 16, 24)
ENOUGH_PERCENT = 99
"""Percent of the best throughput: a smaller memory budget that reaches it is better."""


@dataclass(frozen=True)
class Best:
    """Result of a search: the plan, and the number of others that were examined."""

    plan: Plan
    tried: int


def find_best(request: Request, *, vary_batch: bool) -> Best | None:
    """The plan that fits and gives the most tokens a second and dollar; None: none fits.

    Args:
        request: its cluster's servers and disks, and its run's micro-batch and memory, are replaced.
        vary_batch: True to vary the batch, too, which changes the training.

    Raises:
        ConfigError: the request is for one machine.
    """
    refuse_one_machine(request, "best")
    best: Plan | None = None
    tried = 0
    for sized in _batches(request) if vary_batch else [request]:
        fitted = fit_micro_batch(sized)
        if fitted is None:
            continue
        for servers in SERVERS:
            for disks in DISKS:
                plan = make_plan(_with_servers(fitted, servers, disks))
                tried += 1
                if plan.fits and (best is None or _value(plan) > _value(best)):
                    best = plan
    if best is None:
        return None
    return Best(_smallest_memory(best), tried)


def fit_micro_batch(request: Request) -> Request | None:
    """Return the request with the largest number of rows at once that a worker has memory for; None: not even one."""
    run, kernels = request.settings.run, Kernels(float32=request.settings.run.dtype == "float32")
    micro_batch = request.rows
    while micro_batch >= 1:
        memory = luwu_worker(
            request.model, request.rows, kernels, micro_batch=micro_batch, offload=run.offload is not None,
            checkpoint=run.checkpoint,
        )  # fmt: skip
        if not memory.misses(request.cluster):
            return request.with_run(micro_batch=None if micro_batch == request.rows else micro_batch)
        micro_batch //= 2
    return None


def _value(plan: Plan) -> float:
    return plan.tokens_per_second_and_dollar or 0.0


def _batches(request: Request) -> Iterable[Request]:
    for power in range(9):
        yield request.with_run(batch=(1 << power) * request.cluster.workers)


def _with_servers(request: Request, servers: int, disks: int) -> Request:
    server = replace(request.cluster.server, disks=disks)
    return replace(
        request.with_run(memory=usual_budget(server)),
        cluster=replace(request.cluster, server=server, servers=servers),
    )


def _smallest_memory(plan: Plan) -> Plan:
    """Halve the budget for as long as next to nothing is lost."""
    enough = plan.tokens_per_second * ENOUGH_PERCENT / 100
    while True:
        budget = plan.request.settings.run.memory // 2
        smaller = make_plan(plan.request.with_run(memory=budget))
        if not smaller.fits or smaller.tokens_per_second < enough:
            return plan
        plan = smaller
