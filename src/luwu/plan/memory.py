"""Memory of a worker, for LuWu and for its peers; in bytes, by kind.

Activations follow arXiv 2205.05198: a layer keeps ``s*b*h*34`` bytes for its backward, and unfused attention
``5*a*s*s*b`` more. With checkpointing only a layer's input is kept, and one layer's activations at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luwu.models.shapes import ModelShape
from luwu.plan.clusters import Cluster
from luwu.plan.compute import Kernels
from luwu.plan.constants import GPU_RESERVE_BYTES, LOSS_BYTES_KEPT_PER_LOGIT

STATE_BYTES = 12  # fp32 master, m, v
TILE_LOGITS = 1 << 23  # as luwu.worker.tiled_loss

SPARE_SUMS = 2
"""Float32 buffers of a block's gradients where slices are added up; a CPU's float32 gradients need none."""


@dataclass(frozen=True)
class WorkerMemory:
    """Bytes on a worker's GPU and in its host's memory (that host's other workers apart), by kind."""

    gpu: Mapping[str, float]
    host: Mapping[str, float]

    @property
    def gpu_bytes(self) -> float:
        """Bytes of the GPU's memory."""
        return sum(self.gpu.values())

    @property
    def host_bytes(self) -> float:
        """Bytes of the host's memory for this worker."""
        return sum(self.host.values())

    def misses(self, cluster: Cluster) -> list[tuple[str, float]]:
        """Return the parts that do not fit, and the bytes that each lacks."""
        over = [("GPU memory", self.gpu_bytes - cluster.gpu.memory_bytes)]
        if not cluster.one_machine:  # else it is the server's, too, and a plan divides it
            over.append(("host memory", self.host_bytes - cluster.host.memory_bytes / cluster.host.gpus))
        return [(name, excess) for name, excess in over if excess > 0]


def boundary_bytes(model: ModelShape, rows: int, element: int = 2) -> float:
    """Inputs of all layers, kept for backward."""
    return float(element * rows * model.sequence * model.hidden * model.layers)


def layer_activation_bytes(model: ModelShape, rows: int, kernels: Kernels) -> float:
    """Return the bytes that one layer keeps for its backward, and as much again for the widest part of backward."""
    tokens = rows * model.sequence
    wide = model.feed_forward * model.experts_per_token * (3 if model.gated else 2)
    kept = tokens * (2.0 * wide + 18.0 * model.hidden)  # 34 h where wide is 2 x 4 h
    if kernels.attention == "unfused":
        kept += 5.0 * tokens * model.sequence * model.heads
    gradients = tokens * 2.0 * (model.feed_forward * model.experts_per_token + 2 * model.hidden)
    return (kept + gradients) * (2 if kernels.float32 else 1)


def logit_bytes(model: ModelShape, rows: int) -> float:
    """Return the bytes of all logits at once, as losses outside of LuWu hold them."""
    return rows * model.sequence * model.vocabulary * LOSS_BYTES_KEPT_PER_LOGIT.value


def luwu_worker(
    model: ModelShape,
    rows: int,
    kernels: Kernels,
    *,
    micro_batch: int | None = None,
    offload: bool = True,
    checkpoint: bool = True,
) -> WorkerMemory:
    """Return the memory of a LuWu worker: a few blocks, one layer's activations, a tile of logits, and layers' inputs.

    Without checkpointing all layers' activations stay on the GPU.
    """
    element = 4 if kernels.float32 else 2
    tables = model.table_parameters()
    largest = max([model.layer_size + model.adapter_size, *tables]) * element
    root = (model.outside_size - sum(tables)) * element
    if model.lora_rank:
        gradients = 1.0 * model.adapter_size * element
    else:  # a tied table's from the head's is kept until the embedding's
        gradients = 1.0 * largest + root + (max(tables, default=0) * element if model.tied else 0)
    at_once = min(rows, micro_batch or rows)
    logits = min(at_once * model.sequence * model.vocabulary, TILE_LOGITS) * LOSS_BYTES_KEPT_PER_LOGIT.value
    boundary = boundary_bytes(model, rows, element)
    activations = layer_activation_bytes(model, at_once, kernels)
    gpu = {
        "parameters": 2.0 * largest + root,
        "gradients": gradients,
        "activations": logits + (activations if checkpoint else model.layers * activations * rows / at_once),
        "reserve": GPU_RESERVE_BYTES.value,
    }
    if at_once < rows:
        gpu["sums of gradients"] = 4.0 * SPARE_SUMS * model.trained_layer_size
    if not checkpoint:
        return WorkerMemory(gpu, {})
    if not offload:
        return WorkerMemory({**gpu, "layers' inputs": boundary}, {})
    # Two layers' inputs are on their way at a time.
    return WorkerMemory({**gpu, "layers' inputs": 2 * boundary / model.layers}, {"layers' inputs": boundary})


def peer_worker(system: str, model: ModelShape, cluster: Cluster, rows: int, kernels: Kernels) -> WorkerMemory:
    """Return the memory of a worker of one of `luwu.plan.peers.PEERS`."""
    size, workers = float(model.parameters), cluster.workers
    layer, boundary = 2.0 * model.layer_size, boundary_bytes(model, rows)
    working = max(layer_activation_bytes(model, rows, kernels), logit_bytes(model, rows))
    gpu = {"activations": working, "reserve": GPU_RESERVE_BYTES.value}
    gathered = {"parameters": 2 * layer, "gradients": 2 * layer}  # two layers; a gradient and its bucket
    kept_here = {"layers' inputs": boundary}
    if system in ("zero3", "fsdp2"):
        own = size / workers
        return WorkerMemory(
            {**gpu, **kept_here, **gathered, "own share": own * (2 + 2), "states": own * STATE_BYTES}, {}
        )
    if system == "zero_infinity":
        host = {"layers' inputs": boundary, "gradients": 2 * size / workers}  # pinned, DeepSpeed's flat partition
        return WorkerMemory({**gpu, **gathered, "layers' inputs": 2 * boundary / model.layers}, host)
    if system == "zero_offload":
        host = {"states": size * STATE_BYTES / workers, "gradients": 2 * size / workers}
        return WorkerMemory({**gpu, **kept_here, "parameters": 2 * size, "gradients": layer}, host)
    if system == "replicated":
        return WorkerMemory(
            {**gpu, **kept_here, "parameters": 2 * size, "gradients": 2 * size, "states": STATE_BYTES * size}, {}
        )
    return luwu_worker(model, rows, kernels)  # parameter_server
