"""The server's memory budget on a machine that it shares with its workers: the rest of the memory."""

from __future__ import annotations

from luwu.plan.machines import MEBIBYTE, memory_beside_server, whole_mebibytes
from luwu.plan.planning import Request, forecast_servers

UNLIMITED = 1 << 60


def fit_budget(request: Request) -> Request:
    """Return the request with the largest budget that there is room and use for, in whole MiB.

    Where there is not even room for the least budget, it is that one, and the plan does not fit.
    """
    room = request.cluster.host.memory_bytes - sum(memory_beside_server(request).values())
    everything = whole_mebibytes(forecast_servers(request.with_run(memory=UNLIMITED)).memory_bytes)
    budget = min(everything, max(int(room) // MEBIBYTE, 1) * MEBIBYTE)
    least = forecast_servers(request.with_run(memory=budget)).minimum_bytes
    return request.with_run(memory=max(budget, whole_mebibytes(least)))


def with_rows(request: Request, rows: int, micro_batch: int | None) -> Request:
    """Return the request with ``rows`` sequences for each worker; a budget that nobody gave is fitted again."""
    changed = request.with_run(batch=rows * request.cluster.workers, micro_batch=micro_batch)
    return fit_budget(changed) if request.leftover_budget else changed
