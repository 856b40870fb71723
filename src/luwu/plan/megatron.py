"""Tensor, pipeline and data parallelism together, as Megatron-LM does it (arXiv 2104.04473)."""

from __future__ import annotations

from dataclasses import dataclass, field

from luwu.core.errors import ConfigError
from luwu.models.shapes import ModelShape
from luwu.plan.clusters import Cluster
from luwu.plan.collectives import collective_seconds
from luwu.plan.compute import Kernels, head_seconds, layer_seconds
from luwu.plan.constants import MEMORY_SHARE, NVLINK_HOP_SECONDS, NVLINK_SHARE, RDMA_SHARE
from luwu.plan.peers import GPU_UPDATE_BYTES
from luwu.plan.pipelines import PartSeconds, PipelineRun, play


@dataclass(frozen=True)
class Parallelism:
    """Division of a model over GPUs: ``tensor`` within a host, ``pipeline`` stages, replicas over the rest."""

    tensor: int
    pipeline: int
    micro_batch: int
    schedule: str = "1f1b"
    parts: int = 1
    kernels: Kernels = field(default_factory=lambda: Kernels(attention="unfused", fused=True))


@dataclass(frozen=True)
class ParallelStep:
    """A step of all GPUs on one global batch."""

    seconds: float
    pipeline: PipelineRun
    flop: float
    gpus: int

    @property
    def flops_per_gpu(self) -> float:
        """Model flop a second and GPU, with those of the recompute, as arXiv 2104.04473 counts."""
        return self.flop / self.seconds / self.gpus


def parallel_step(model: ModelShape, cluster: Cluster, batch: int, how: Parallelism) -> ParallelStep:
    """A step with activations recomputed.

    Args:
        model: with its sequence length.
        cluster: whose workers are GPUs.
        batch: sequences of a step over all replicas.
        how: the numbers of parallelism.

    Raises:
        ConfigError: the numbers do not divide.
    """
    replicas, micro_batches = _divide(cluster.workers, batch, how)
    stage = stage_seconds(model, cluster, how)
    run = play(how.schedule, how.pipeline, micro_batches, stage, how.parts)
    own = model.parameters / how.tensor / how.pipeline
    reduce = collective_seconds("all_reduce", "ring", 2 * own, replicas, _replica_rate(cluster, how))
    update = own * GPU_UPDATE_BYTES / (cluster.gpu.memory_rate * MEMORY_SHARE.value)
    flop = batch * model.sequence * model.step_flop_per_token(recompute=True)
    return ParallelStep(run.seconds + reduce + update, run, flop, cluster.workers)


def _divide(gpus: int, batch: int, how: Parallelism) -> tuple[int, int]:
    replicas, rest = divmod(gpus, how.tensor * how.pipeline)
    if rest or replicas < 1:
        raise ConfigError(
            f"parallelism: expected {gpus} GPUs to be a multiple of tensor x pipeline, "
            f"found {how.tensor} x {how.pipeline}"
        )
    micro_batches, rest = divmod(batch, replicas * how.micro_batch)
    if rest or micro_batches < 1:
        raise ConfigError(
            f"batch: expected a multiple of replicas x micro-batch ({replicas} x {how.micro_batch}), found {batch}"
        )
    return replicas, micro_batches


def stage_seconds(model: ModelShape, cluster: Cluster, how: Parallelism) -> PartSeconds:
    """Return the seconds of one micro-batch in the last stage, which has the head: the others wait for it."""
    layer = layer_seconds(model, cluster.gpu, how.micro_batch, how.kernels, how.tensor)
    reduce = 2 * _tensor_reduce(model, cluster, how)  # after attention and after the network, each way
    head = head_seconds(model, cluster.gpu, how.micro_batch, how.tensor)
    layers = model.layers / how.pipeline
    forward = layers * (layer.forward + reduce)
    again = forward
    # A micro-batch's weight gradients are added to those before: read twice, written once.
    added = layers * model.layer_size / how.tensor * 6 / (cluster.gpu.memory_rate * MEMORY_SHARE.value)
    backward = layers * (layer.backward + reduce)
    hop = _hop_seconds(model, cluster, how)
    turns = how.parts if how.pipeline > 1 else 0
    return PartSeconds(
        forward + head.forward + turns * hop,
        again + backward / 2 + head.backward / 2 + turns * hop,
        backward / 2 + head.backward / 2 + added,
    )


def _peer_rate(cluster: Cluster) -> float:
    """Return the rate between GPUs of one host: NVLink's, or that of their links to the host."""
    return cluster.gpu.peer_rate * NVLINK_SHARE.value or cluster.gpu.host_rate


def _tensor_reduce(model: ModelShape, cluster: Cluster, how: Parallelism) -> float:
    if how.tensor == 1:
        return 0.0
    payload = 2.0 * how.micro_batch * model.sequence * model.hidden
    steps = 2 * (how.tensor - 1)
    return payload * steps / how.tensor / _peer_rate(cluster) + steps * NVLINK_HOP_SECONDS.value


def _hop_seconds(model: ModelShape, cluster: Cluster, how: Parallelism) -> float:
    """Return the seconds to the next stage: each GPU sends its part over its own link; NVLink gathers the parts."""
    payload = 2.0 * how.micro_batch * model.sequence * model.hidden
    across = payload / how.tensor / (cluster.link_rate * RDMA_SHARE.value)
    if how.tensor == 1:
        return across
    return across + payload * (how.tensor - 1) / how.tensor / _peer_rate(cluster)


def _replica_rate(cluster: Cluster, how: Parallelism) -> float:
    """Return the rate of a ring over replicas: those of one host use its links together."""
    together = max(1, cluster.host.gpus // how.tensor)
    links = cluster.link_rate * RDMA_SHARE.value * together
    return min(links, _peer_rate(cluster)) if together > 1 else links
