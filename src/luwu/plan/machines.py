"""Single machines that are server and workers at once: presets, and the division of their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from luwu.core.manifest import element_bytes
from luwu.plan.clusters import CLUSTERS, DISKS, Cluster, Server, WorkerHost
from luwu.plan.constants import SERVER_PROCESS_BYTES, SYSTEM_RESERVE_BYTES, WORKER_PROCESS_BYTES
from luwu.plan.gpus import GPUS, Gpu

if TYPE_CHECKING:
    from luwu.plan.planning import Request

MEBIBYTE = 1 << 20


def _machine(
    name: str, gpu: Gpu, memory_gib: int, memory_rate: float, flops: float, watts: int, source: str
) -> Cluster:
    memory = memory_gib * 2**30
    disk = DISKS["990-pro-2tb"]
    server = Server(gpu.host_rate, memory, memory_rate, flops, disk, disks=1, watts=0)
    host = WorkerHost(gpus=1, memory_bytes=memory, memory_rate=memory_rate, watts=watts)
    return Cluster(name, gpu, 1, gpu.host_rate, host, server, servers=1, aggregation="memory", source=source)


_DESKTOP = CLUSTERS["desktops"].server

MACHINES: dict[str, Cluster] = {
    machine.name: machine
    for machine in (
        _machine(
            "desktop", GPUS["rtx-4090"], 64, _DESKTOP.memory_rate, _DESKTOP.flops, 200,
            "two channels of DDR5, as in the cluster desktops",
        ),
        _machine(
            "workstation", GPUS["h200-141gb-sxm"], 512, CLUSTERS["h100-ethernet"].host.memory_rate,
            CLUSTERS["paper"].server.flops / 2, 400, "one socket, eight channels of DDR5, as hosts of h100-ethernet",
        ),
    )
}  # fmt: skip


def machine_cluster(machine: Cluster, gpu: Gpu, workers: int, memory_bytes: int) -> Cluster:
    """The same machine with other parts."""
    return replace(
        machine,
        name=f"{machine.name} with {gpu.name}",
        gpu=gpu,
        workers=workers,
        link_rate=gpu.host_rate,
        host=replace(machine.host, gpus=max(1, workers), memory_bytes=memory_bytes),
        server=replace(machine.server, memory_bytes=memory_bytes),
    )


def memory_beside_server(request: Request) -> Mapping[str, float]:
    """Bytes of a machine's memory that are not of the server's budget, by what takes them."""
    workers = request.cluster.workers
    return {
        "server's process": SERVER_PROCESS_BYTES.value,
        "layers' inputs, pinned": float(workers * pinned_input_bytes(request)),
        "workers' processes": workers * WORKER_PROCESS_BYTES.value,
        "system": SYSTEM_RESERVE_BYTES.value,
    }


def pinned_input_bytes(request: Request) -> int:
    """Bytes of one worker's pinned memory for layers' inputs.

    torch's allocator of pinned memory rounds each tensor up to a power of two (pytorch/pytorch, issue 150517), and a
    worker puts the input of each slice of each layer away.
    """
    run, model, rows = request.settings.run, request.model, request.rows
    if run.offload is None or not run.checkpoint:
        return 0
    at_once = min(rows, run.micro_batch or rows)
    row_bytes = model.sequence * model.hidden * element_bytes(run.dtype)
    whole, rest = divmod(rows, at_once)
    return model.layers * (
        whole * _power_of_two(at_once * row_bytes) + (_power_of_two(rest * row_bytes) if rest else 0)
    )


def whole_mebibytes(count: int) -> int:
    """Bytes rounded up to whole MiB, as budgets are written."""
    return -(-count // MEBIBYTE) * MEBIBYTE


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
