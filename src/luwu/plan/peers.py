"""Today's systems as models, to compare LuWu's step with, on the same cluster with the same kernels.

| system | where parameters, gradients and states lie | published in |
|---|---|---|
| zero3, fsdp2 | divided over the workers' GPUs | arXiv 1910.02054, arXiv 2304.11277 |
| zero_offload | parameters on every GPU; gradients and states in the hosts' memory | arXiv 2101.06840 |
| zero_infinity | divided over the workers' NVMe, updated by their CPUs after backward | arXiv 2104.07857 |
| replicated | on every GPU; gradients are added up in the network (ATP, SwitchML) | USENIX NSDI 2021 |
| parameter_server | in a server without switches, a stream for each worker | arXiv 1312.6098 and later ones |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from luwu.core.errors import ConfigError
from luwu.models.shapes import ModelShape
from luwu.plan.clusters import Cluster, Disk
from luwu.plan.collectives import Algorithm, beside_compute, collective_seconds, link_bytes, transfer
from luwu.plan.compute import Kernels
from luwu.plan.constants import (
    CPU_UPDATE_BYTES,
    CPU_UPDATE_SHARE,
    MEMORY_SHARE,
    NVLINK_SHARE,
    RDMA_SHARE,
    SWAP_READ_BYTES,
    SWAP_WRITE_BYTES,
)
from luwu.plan.luwu_step import OnDisk, Variant, layer_times, step_time
from luwu.plan.steps import PhaseTime, StepTime

GPU_UPDATE_BYTES = 30  # as on a CPU: states, gradient and the copy pass through memory once


@dataclass(frozen=True)
class PeerSettings:
    """Settings of a peer: its collectives, True if they compete with GEMMs (preemption or MPS: no), and its kernels."""

    algorithm: Algorithm = "ring"
    interferes: bool = True
    kernels: Kernels = field(default_factory=Kernels)
    checkpoint: bool = True


def zero3(model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings) -> StepTime:
    """ZeRO-3: two all-gathers and a reduce-scatter of the model, an update on the GPUs."""
    phases = _sharded_phases(model, cluster, rows, settings)
    update = model.parameters / cluster.workers * GPU_UPDATE_BYTES / (cluster.gpu.memory_rate * MEMORY_SHARE.value)
    return StepTime(
        "zero3",
        rows,
        (*phases, PhaseTime("update", update, {"update": update})),
        _sharded_bytes(model, cluster, settings),
    )


def fsdp2(model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings) -> StepTime:
    """FSDP2 with blocks resharded after forward: ZeRO-3's traffic."""
    return replace(zero3(model, cluster, rows, settings), system="fsdp2")


def zero_infinity(model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings) -> StepTime:
    """ZeRO-3's traffic with everything on the hosts' NVMe, and an update that begins when backward has ended."""
    disk, count = _host_disks(cluster)
    here = model.parameters / cluster.hosts
    swap = disk.seconds(here * SWAP_READ_BYTES.value, here * SWAP_WRITE_BYTES.value) / count
    update = here * CPU_UPDATE_BYTES.value / (cluster.host.memory_rate * CPU_UPDATE_SHARE.value)
    forward, backward = _sharded_phases(model, cluster, rows, settings)
    reads = disk.seconds(2 * here, 0) / count
    phases = tuple(
        PhaseTime(phase.name, max(phase.seconds, reads), {**phase.parts, "disk": reads})
        for phase in (forward, backward)
    )
    parts = {"disk": swap, "update": update}
    return StepTime(
        "zero_infinity",
        rows,
        (*phases, PhaseTime("update", max(parts.values()), parts)),
        _sharded_bytes(model, cluster, settings),
    )


def zero_offload(model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings) -> StepTime:
    """Parameters on every GPU; gradients are reduce-scattered to the hosts, updated there and gathered again."""
    compute = _compute(model, cluster, rows, settings)
    size, rate = 2.0 * model.parameters, _collective_rate(cluster)
    scatter = transfer("reduce_scatter", settings.algorithm, size, cluster.workers, rate)
    gather = collective_seconds("all_gather", settings.algorithm, size, cluster.workers, rate)
    across = size / cluster.workers / cluster.gpu.host_rate
    host = model.parameters / cluster.hosts
    update = host * CPU_UPDATE_BYTES.value / (cluster.host.memory_rate * CPU_UPDATE_SHARE.value)
    backward = beside_compute(compute["backward"], scatter, interferes=settings.interferes)
    return StepTime(
        "zero_offload",
        rows,
        (
            PhaseTime("forward", compute["forward"], {"compute": compute["forward"]}),
            PhaseTime(
                "backward",
                max(backward, across),
                {"compute": compute["backward"], "push": scatter.seconds, "copy": across},
            ),
            PhaseTime("update", update + across + gather, {"update": update, "copy": across, "pull": gather}),
        ),
        {"worker, down": link_bytes("all_gather", settings.algorithm, size, cluster.workers) * 2},
    )


def replicated(model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings) -> StepTime:
    """Data parallelism of whole models; the switch adds gradients up as 32-bit integers (ATP)."""
    compute = _compute(model, cluster, rows, settings)
    payload = (4.0 if settings.algorithm == "switch" else 2.0) * model.parameters
    reduce = transfer("all_reduce", settings.algorithm, payload, cluster.workers, _collective_rate(cluster))
    update = model.parameters * GPU_UPDATE_BYTES / (cluster.gpu.memory_rate * MEMORY_SHARE.value)
    backward = beside_compute(compute["backward"], reduce, interferes=settings.interferes)
    return StepTime(
        "replicated",
        rows,
        (
            PhaseTime("forward", compute["forward"], {"compute": compute["forward"]}),
            PhaseTime("backward", backward, {"compute": compute["backward"], "push": reduce.seconds}),
            PhaseTime("update", update, {"update": update}),
        ),
        {"worker, up": link_bytes("all_reduce", settings.algorithm, payload, cluster.workers)},
    )


def parameter_server(model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings) -> StepTime:
    """The model in a server that keeps all of it in memory, with nothing in the network to help."""
    plain = replace(cluster, aggregation="none")
    variant = Variant(kernels=settings.kernels, checkpoint=settings.checkpoint)
    return replace(step_time(model, plain, rows, OnDisk(0, 0, 0, 0), variant), system="parameter_server")


Peer = Callable[[ModelShape, Cluster, int, PeerSettings], StepTime]

PEERS: dict[str, Peer] = {
    peer.__name__: peer for peer in (zero3, fsdp2, zero_offload, zero_infinity, replicated, parameter_server)
}


def _compute(model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings) -> dict[str, float]:
    variant = Variant(kernels=settings.kernels, checkpoint=settings.checkpoint)
    layer, head = layer_times(model, cluster, rows, variant)
    again = layer.forward if settings.checkpoint else 0.0
    return {
        "forward": model.layers * layer.forward + head.forward,
        "backward": model.layers * (layer.backward + again) + head.backward,
    }


def _collective_rate(cluster: Cluster) -> float:
    """Return the rate of a collective over all workers, in bytes per second and worker.

    GPUs of one host pass data on over NVLink and use all of its links: rings go through a host once, on each link.
    """
    links = cluster.link_rate * RDMA_SHARE.value * cluster.host.gpus
    if cluster.hosts == 1:
        return cluster.gpu.peer_rate * NVLINK_SHARE.value or cluster.gpu.host_rate
    inside = cluster.gpu.peer_rate * NVLINK_SHARE.value
    return min(links, inside) if inside else links / cluster.host.gpus


def _sharded_phases(
    model: ModelShape, cluster: Cluster, rows: int, settings: PeerSettings
) -> tuple[PhaseTime, PhaseTime]:
    compute = _compute(model, cluster, rows, settings)
    size, rate, workers = 2.0 * model.parameters / model.layers, _collective_rate(cluster), cluster.workers
    gather = transfer("all_gather", settings.algorithm, size, workers, rate, model.layers)
    scatter = transfer("reduce_scatter", settings.algorithm, size, workers, rate, model.layers)
    forward = beside_compute(compute["forward"], gather, interferes=settings.interferes)
    backward = beside_compute(compute["backward"], gather + scatter, interferes=settings.interferes)
    return (
        PhaseTime("forward", forward, {"compute": compute["forward"], "pull": gather.seconds}),
        PhaseTime(
            "backward",
            backward,
            {"compute": compute["backward"], "pull": gather.seconds, "push": scatter.seconds},
        ),
    )


def _sharded_bytes(model: ModelShape, cluster: Cluster, settings: PeerSettings) -> dict[str, float]:
    one = link_bytes("all_gather", settings.algorithm, 2.0 * model.parameters, cluster.workers)
    return {"worker, down": 3 * one, "worker, up": 3 * one}


def _host_disks(cluster: Cluster) -> tuple[Disk, int]:
    host = cluster.host
    if host.disk is None or host.disks < 1:
        raise ConfigError(f"zero_infinity: expected workers with disks, found none in cluster {cluster.name}")
    return host.disk, host.disks
