"""Tensor and pipeline parallelism within a replica, and LuWu or sharding between replicas.

Each of a replica's GPUs has one part of the model, and shares it with the same GPU of all other replicas: with a server
(and tree of switches) of their own, or by collectives among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from luwu.models.shapes import ModelShape
from luwu.plan.clusters import Cluster
from luwu.plan.collectives import Algorithm, beside_compute, transfer
from luwu.plan.constants import GOODPUT_SHARE, RDMA_SHARE
from luwu.plan.megatron import Parallelism, stage_seconds
from luwu.plan.pipelines import play
from luwu.plan.steps import PhaseTime, StepTime

System = Literal["luwu", "sharded"]


@dataclass(frozen=True)
class Replicas:
    """Number of replicas, sequences of each in a step, and the way their parts are shared."""

    count: int
    rows: int
    system: System
    algorithm: Algorithm = "ring"


def hybrid_step(model: ModelShape, cluster: Cluster, how: Parallelism, replicas: Replicas) -> StepTime:
    """Return the time of a step; ``cluster`` gives the GPU, its link and its host, not the number of GPUs.

    LuWu's servers are taken to keep up: there is one for each part, whose share of the model is small.
    """
    stage = stage_seconds(model, cluster, how)
    run = play(how.schedule, how.pipeline, max(1, replicas.rows // how.micro_batch), stage, how.parts)
    whole = stage.forward + stage.backward_inputs + stage.backward_weights
    forward = run.seconds * stage.forward / whole
    compute = {"forward": forward, "backward": run.seconds - forward}
    payload = 2.0 * model.parameters / how.tensor / how.pipeline
    layers = max(1, model.layers // how.pipeline)
    if replicas.system == "luwu":
        once = payload / (cluster.link_rate * GOODPUT_SHARE.value)
        parts = {
            "forward": {"compute": compute["forward"], "pull": once},
            "backward": {"compute": compute["backward"], "pull": once, "push": once},
        }
        seconds = {name: max(found.values()) for name, found in parts.items()}
    else:
        rate = cluster.link_rate * RDMA_SHARE.value
        one = transfer("all_gather", replicas.algorithm, payload / layers, replicas.count, rate, layers)
        parts = {
            "forward": {"compute": compute["forward"], "pull": one.seconds},
            "backward": {"compute": compute["backward"], "pull": one.seconds, "push": one.seconds},
        }
        seconds = {
            "forward": beside_compute(compute["forward"], one),
            "backward": beside_compute(compute["backward"], one + one),
        }
    phases = tuple(PhaseTime(name, seconds[name], found) for name, found in parts.items())
    return StepTime(replicas.system, replicas.rows, phases)
