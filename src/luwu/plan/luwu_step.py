"""LuWu's step: two phases, each as long as the slowest of worker, links, disks and server, and what nothing hides.

In forward a block's parameters come down; in backward they come down again while gradients go up and the server reads
states, updates, and writes (arXiv 2409.00918; docs/planning.md has the arithmetic).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from luwu.models.shapes import ModelShape
from luwu.plan.clusters import Cluster
from luwu.plan.collectives import Transfer, beside_compute
from luwu.plan.compute import Kernels, LayerSeconds, head_seconds, layer_seconds
from luwu.plan.constants import FORWARD_MEMORY_BYTES, GOODPUT_SHARE, HOST_MEMORY_SHARE, UPDATE_FLOP, UPDATE_MEMORY_BYTES
from luwu.plan.steps import PhaseTime, StepTime


@dataclass(frozen=True)
class OnDisk:
    """Bytes that a step moves between the servers' disks and memory, over all servers.

    ``written``: of records. ``kept``: of gradients that are written in backward and read with the states.
    """

    parameters_read_forward: float
    parameters_read_backward: float
    states_read: float
    written: float
    kept: float = 0.0

    @classmethod
    def everything(cls, parameters: float, parameter_bytes: int = 2, state_bytes: int = 12) -> OnDisk:
        """Return the bytes of a step that keeps nothing in memory, as the published design."""
        once = parameters * parameter_bytes
        return cls(once, once, parameters * state_bytes, parameters * (parameter_bytes + state_bytes))


@dataclass(frozen=True)
class Variant:
    """Ways to run it: bytes of an element on the wire, and the variants that the design was measured against.

    ``inputs_bytes``: of layers' inputs that a worker keeps in its host's memory from forward to backward.
    ``driver``: gpu, where kernels on the GPU push and pull one after the other, instead of a network card.
    ``colocated``: the server's share lies on the workers, whose links carry its traffic, too.
    ``settles``: gradients are kept until the step is decided, and its updates run beside the next step's forward.
    ``tail``: the share of gradients that is kept where updates are behind; these run beside the next forward.
    """

    parameter_bytes: int = 2
    gradient_bytes: float = 2
    kernels: Kernels = field(default_factory=Kernels)
    checkpoint: bool = True
    micro_batch: int | None = None
    inputs_bytes: float = 0.0
    driver: Literal["nic", "gpu"] = "nic"
    colocated: bool = False
    settles: bool = False
    tail: float = 0.0


def step_time(model: ModelShape, cluster: Cluster, rows: int, disk: OnDisk, variant: Variant | None = None) -> StepTime:
    """A step in which every worker has ``rows`` sequences."""
    variant = variant or Variant()
    layer, head = layer_times(model, cluster, rows, variant)
    layers, size = model.layers, float(model.parameters)
    recompute = layers * layer.forward if variant.checkpoint else 0.0
    compute = {
        "forward": layers * layer.forward + head.forward,
        "backward": layers * layer.backward + recompute + head.backward,
    }
    traffic = Traffic.of(cluster, model, variant)
    copies = Copies.of(cluster, size * variant.parameter_bytes, variant.inputs_bytes)
    network = not cluster.one_machine
    work = ServerWork.of(cluster, model, disk, variant)
    forward = {
        "compute": compute["forward"],
        **({"pull": traffic.pull_seconds} if network else {}),
        "copy": copies.forward,
        **work.forward,
    }
    backward = {
        "compute": compute["backward"],
        **({"pull": traffic.pull_seconds, "push": traffic.push_seconds} if network else {}),
        "copy": copies.backward,
        **work.backward,
    }
    _spread(work.late_writes, forward, backward)
    _follow(variant.tail, forward, backward)
    pulled = (model.layer_size + model.adapter_size) / model.parameters
    pushed = model.trained_layer_size / model.trained_parameters
    phases = (
        PhaseTime("first block", pulled * max(traffic.pull_seconds, work.before_first_block), {"pull": 0.0}),
        PhaseTime("forward", _phase_seconds(forward, variant), forward),
        PhaseTime("backward", _phase_seconds(backward, variant), backward),
        PhaseTime("last update", pushed * (traffic.push_seconds + work.after_last_push), {"push": 0.0}),
    )
    return StepTime("luwu", rows, phases, traffic.link_bytes)


@dataclass(frozen=True)
class ServerWork:
    """Seconds of the servers' parts for a whole model.

    Attributes:
        forward, backward: by part and phase.
        before_first_block: until the first block is there; the root was pulled at the end of the last step.
        after_last_push: from a block's push to the answer. The states of the last block were read ahead.
        late_writes: of the disk, beside the forward or the backward.
    """

    forward: dict[str, float]
    backward: dict[str, float]
    before_first_block: float
    after_last_push: float
    late_writes: float = 0.0

    @classmethod
    def of(cls, cluster: Cluster, model: ModelShape, disk: OnDisk, variant: Variant) -> ServerWork:
        """Return the work of updates in backward, or of those that settle beside the next step's forward."""

        def on_disk(read: float, written: float) -> float:
            return cluster.server.disk_seconds(read, written) / cluster.servers

        memory = MemorySeconds.of(cluster, model, variant.parameter_bytes)
        update = update_seconds(cluster, model.trained_parameters)
        if variant.settles:
            first = disk.parameters_read_forward + disk.states_read + disk.kept
            return cls(
                {"disk": on_disk(first, 0), "server memory": memory.settling, "update": update},
                {"disk": on_disk(disk.parameters_read_backward, disk.kept), "server memory": memory.keeping},
                before_first_block=on_disk(first, 0) + update,
                after_last_push=0.0,
                late_writes=on_disk(first, disk.written) - on_disk(first, 0),
            )
        read = disk.parameters_read_backward + disk.states_read
        return cls(
            {"disk": on_disk(disk.parameters_read_forward, 0), "server memory": memory.forward},
            {"disk": on_disk(read, disk.written), "server memory": memory.backward, "update": update},
            before_first_block=on_disk(disk.parameters_read_forward, 0),
            after_last_push=on_disk(0, disk.written),
        )


@dataclass(frozen=True)
class Copies:
    """Seconds of a worker's copies between its host's memory and its GPU, each way at once; by phase.

    Parameters come down in both phases; gradients go up in backward. Inputs go up in forward and come down in backward.
    """

    forward: float
    backward: float

    @classmethod
    def of(cls, cluster: Cluster, parameter_bytes: float, inputs_bytes: float) -> Copies:
        """Return the time of the whole model's copies.

        Gradients are as large as parameters there, whatever their form.
        """
        rate = cluster.gpu.host_rate
        return cls(max(parameter_bytes, inputs_bytes) / rate, (parameter_bytes + inputs_bytes) / rate)


@dataclass(frozen=True)
class MemorySeconds:
    """Seconds of the servers' memory for a whole model; by phase.

    ``settling`` and ``keeping`` are those of forward and backward where gradients are kept until the step is decided.
    """

    forward: float
    backward: float
    settling: float
    keeping: float

    @classmethod
    def of(cls, cluster: Cluster, model: ModelShape, element_bytes: int) -> MemorySeconds:
        """Return the time of the published traffic.

        Each further worker of a machine adds its pulls, and its pushes twice. A kept gradient is written and read once
        more.
        """
        rate = cluster.server.memory_rate * HOST_MEMORY_SHARE.value * cluster.servers
        others = cluster.workers - 1 if cluster.one_machine else 0
        parameters, trained = model.parameters, model.trained_parameters
        frozen = parameters - trained
        pulls = FORWARD_MEMORY_BYTES.value + others * element_bytes
        pushes = (1 + 2 * others) * element_bytes
        return cls(
            pulls * parameters / rate,
            ((UPDATE_MEMORY_BYTES.value + others * 3 * element_bytes) * trained + pulls * frozen) / rate,
            (pulls * parameters + UPDATE_MEMORY_BYTES.value * trained) / rate,
            (pulls * parameters + (pushes + element_bytes) * trained) / rate,
        )


def update_seconds(cluster: Cluster, parameters: float) -> float:
    """Seconds of the servers' processors for updates."""
    return UPDATE_FLOP.value * parameters / (cluster.server.flops * cluster.servers)


def layer_times(model: ModelShape, cluster: Cluster, rows: int, variant: Variant) -> tuple[LayerSeconds, LayerSeconds]:
    """A layer's and the head's times for a worker's rows, some at a time."""
    at_once = min(rows, variant.micro_batch or rows)
    pieces = rows / at_once
    float32 = variant.kernels.float32
    layer = layer_seconds(model, cluster.gpu, at_once, variant.kernels)
    head = head_seconds(model, cluster.gpu, at_once, float32=float32)
    return (
        LayerSeconds(layer.forward * pieces, layer.backward * pieces),
        LayerSeconds(head.forward * pieces, head.backward * pieces),
    )


@dataclass(frozen=True)
class Traffic:
    """Bytes of a step on every kind of link, and how long one pass of pulls and the pushes take."""

    pull_seconds: float
    push_seconds: float
    link_bytes: dict[str, float]

    @classmethod
    def of(cls, cluster: Cluster, model: ModelShape, variant: Variant) -> Traffic:
        """Return the bytes of the whole model once down, and of its gradients once up."""
        parameter_bytes = float(model.parameters * variant.parameter_bytes)
        gradient_bytes = model.trained_parameters * variant.gradient_bytes
        if cluster.one_machine:
            rate, inputs = cluster.gpu.host_rate, variant.inputs_bytes
            gradients = float(model.trained_parameters * variant.parameter_bytes)  # as they are in memory
            sizes = {"worker, down": 2 * parameter_bytes + inputs, "worker, up": gradients + inputs}
            return cls(parameter_bytes / rate, gradients / rate, sizes)
        workers, servers = cluster.workers, cluster.servers
        down = 1 if cluster.aggregation in ("switch", "multicast") else workers  # streams that a server sends
        up = 1 if cluster.aggregation == "switch" else workers  # and takes
        colocated = 1 + 1 / workers if variant.colocated else 1.0
        worker_rate = cluster.link_rate * GOODPUT_SHARE.value
        server_rate = cluster.server.link_rate * GOODPUT_SHARE.value * servers
        pull = max(parameter_bytes * colocated / worker_rate, down * parameter_bytes / server_rate)
        push = max(gradient_bytes * colocated / worker_rate, up * gradient_bytes / server_rate)
        if variant.colocated:  # no server's link: each worker's own carries its share of the server's streams
            pull = parameter_bytes * colocated / worker_rate
            push = gradient_bytes * colocated / worker_rate
        return cls(
            pull,
            push,
            {
                "worker, down": 2 * parameter_bytes * colocated,
                "worker, up": gradient_bytes * colocated,
                "each server, down": up * gradient_bytes / servers,
                "each server, up": 2 * down * parameter_bytes / servers,
            },
        )


def _spread(late_writes: float, forward: dict[str, float], backward: dict[str, float]) -> None:
    """Add writes that may go on until the step's end: beside the forward if that takes longer, then the backward."""
    beside = min(late_writes, max(forward.values()) - forward["disk"])
    forward["disk"] += beside
    backward["disk"] += late_writes - beside


def _follow(share: float, forward: dict[str, float], backward: dict[str, float]) -> None:
    """Move what the disk is behind with in backward to the next forward, as far as that lasts and memory keeps it."""
    behind = backward["disk"] - max(seconds for name, seconds in backward.items() if name != "disk")
    moved = max(0.0, min(behind, share * backward["disk"], max(forward.values()) - forward["disk"]))
    forward["disk"] += moved
    backward["disk"] -= moved


def _phase_seconds(parts: dict[str, float], variant: Variant) -> float:
    if variant.driver == "nic":
        return max(parts.values())
    # Kernels on the GPU: one stream, so pulls and pushes follow each other, and they fight with GEMMs.
    seconds = parts["pull"] + parts.get("push", 0.0)
    others = max(seconds for name, seconds in parts.items() if name not in ("compute", "pull", "push"))
    return max(beside_compute(parts["compute"], Transfer(seconds, seconds)), others)
