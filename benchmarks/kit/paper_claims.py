"""Measurements of arXiv 2409.00918, and the cost model's figures for the same: the rows of `plan_paper`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from luwu.models.shapes import ModelShape
from luwu.plan.clusters import CLUSTERS, Cluster
from luwu.plan.collectives import Algorithm, transfer
from luwu.plan.comparison import peer_rows, peer_step
from luwu.plan.compute import Kernels
from luwu.plan.constants import ACKNOWLEDGEMENT_BYTES, GOODPUT_SHARE, PACKET_BYTES, RDMA_SHARE
from luwu.plan.cost import cost_of
from luwu.plan.hybrid import Replicas, hybrid_step
from luwu.plan.luwu_step import OnDisk, Variant, step_time
from luwu.plan.megatron import Parallelism
from luwu.plan.memory import luwu_worker
from luwu.plan.model_presets import MODELS
from luwu.plan.peers import PeerSettings
from luwu.plan.steps import StepTime
from luwu.server.forecast import forecast

PAPER = CLUSTERS["paper"]
ROWS = 16  # micro-batches up to it; 64 for the smallest model
FAMILY = ("opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b", "opt-30b", "opt-66b", "175b", "276b", "505b", "1t")
NOMINAL = (1.3e9, 2.7e9, 6.7e9, 13e9, 30e9, 66e9, 175e9, 276e9, 505e9, 1.0e12)
GPT3_BATCH_TOKENS = 3.2e6  # arXiv 2005.14165, table 2.1


@dataclass(frozen=True)
class Claim:
    """A figure of the paper beside ours. ``note``: why they differ; ``calibrates``: it set a constant, counts not."""

    what: str
    ours: float
    paper: float
    note: str = ""
    calibrates: bool = False

    @property
    def error(self) -> float:
        """Ours over the paper's, less one."""
        return self.ours / self.paper - 1


def shapes() -> Iterator[Claim]:
    """The table of models: parameters from blocks, heads and hidden."""
    for name, nominal in zip(FAMILY, NOMINAL, strict=True):
        yield Claim(f"parameters of {name}", MODELS[name].parameters, nominal)
    model = MODELS["opt-1.3b"]
    store = forecast(
        model.block_elements(), dtype="bfloat16", optimizer="adamw", folders=1, memory_bytes=2**33, workers=1
    )
    read = forecast(model.block_elements(), dtype="bfloat16", optimizer="adamw", folders=1, memory_bytes=0, workers=1)
    states = read.states_read_bytes / model.parameters
    yield Claim("bytes of master, m and v per parameter, as our store has them", states, 12)
    yield Claim("bytes of a parameter, as our store has them", store.written_bytes / model.parameters - states, 2)
    yield Claim("bytes of a gradient, as our worker has it", luwu_gradient_bytes(model) / model.layer_size, 2)


def sizes() -> Iterator[Claim]:
    """The largest model that each system can train."""
    for workers in (1, 8):
        largest = max(
            MODELS[name].parameters
            for name in FAMILY
            if not luwu_worker(MODELS[name], 1, Kernels()).misses(replace(PAPER, workers=workers))
        )
        yield Claim(f"largest model, {workers} workers", largest, 1e12)
    yield Claim(
        "largest model, ZeRO-Infinity, 8 workers", largest_peer("zero_infinity"), 175e9, calibrates=True,
        note="sets the workers' host memory, which the paper does not give, to 64 GiB",
    )  # fmt: skip
    yield Claim("largest model, ATP", largest_peer("replicated"), 1.3e9)


def throughput() -> Iterator[Claim]:
    """Tokens a second and GPU on 8 workers, and against today's systems."""
    large, small = MODELS["175b"], MODELS["opt-1.3b"]
    ours = rate(luwu(large), large)
    yield Claim("175B: tokens/s per GPU", ours, 134)
    infinity = rate(peer("zero_infinity", large), large)
    yield Claim("175B: against ZeRO-Infinity", ours / infinity, 3.98)
    small_rate = rate(luwu(small, 64), small)
    yield Claim("1.3B: tokens/s per GPU", small_rate, 14.1e3)
    unknown = (
        "the paper does not say at which micro-batch the others ran, nor whether they checkpointed; with its own "
        "interference and bandwidth our model has them nearly compute-bound at the largest that fits"
    )
    for system, name, figure in (
        ("zero_infinity", "ZeRO-Infinity", 2.90), ("zero3", "ZeRO-3", 2.33), ("replicated", "ATP", 6.28)
    ):  # fmt: skip
        yield Claim(f"1.3B: against {name}", small_rate / rate(peer(system, small, 64), small), figure, unknown)
    yield Claim("1.3B: share of its throughput at micro-batch 16", rate(luwu(small, 16), small) / small_rate, 1.0)
    middle = [MODELS[name] for name in ("opt-13b", "opt-30b", "opt-66b", "175b")]
    for system, name, figure in (("zero3", "ZeRO-3", 2.04), ("zero_infinity", "ZeRO-Infinity", 2.34)):
        ratios = [
            rate(luwu(model), model) / rate(peer(system, model), model)
            for model in middle
            if peer_rows(system, model, PAPER, ROWS, Kernels())
        ]
        yield Claim(f"13B to 175B: least against {name}", min(ratios), figure)
    huge = MODELS["276b"]
    used = luwu(huge).utilisation(huge, PAPER.gpu.peak_flops, recompute=True)
    yield Claim("276B: MFU (the paper counts the recompute)", used, 0.59)
    tuned = MODELS["opt-66b"]
    yield Claim(
        "66B fine-tuned: 12 hours against 3 days of ZeRO-Infinity",
        rate(luwu(tuned), tuned) / rate(peer("zero_infinity", tuned), tuned),
        6.0,
        "a whole run's wall clock, rounded to half days, with sequence length and batch not given; its own 3.98x at "
        "175B and at least 2.34x from 13B bound what steps alone explain",
    )


def interference() -> Iterator[Claim]:
    """Collectives beside GEMMs, and what does without them."""
    layer = 2.0 * MODELS["175b"].layer_size
    for workers, alone, beside in ((2, None, 1.02), (4, 1.08, 1.35), (8, 1.20, 1.44)):
        link = PAPER.link_rate
        nccl = transfer("all_gather", "ring", layer, workers, link * RDMA_SHARE.value, times=3)
        ours = 2 * layer / (link * GOODPUT_SHARE.value)  # down twice, and up once beside the second
        if alone:
            yield Claim(f"a layer's bandwidth against NCCL, {workers} GPUs", nccl.seconds / ours, alone)
        yield Claim(f"the same beside a GEMM, {workers} GPUs", nccl.crowded_seconds / ours, beside)
    large = MODELS["175b"]
    step, infinity = luwu(large), peer("zero_infinity", large)
    calm = peer("zero_infinity", large, settings=PeerSettings(interferes=False))
    yield Claim("ZeRO-Infinity with preemption: gain", infinity.seconds / calm.seconds, 1.30)
    yield Claim("ZeRO-Infinity with preemption: share of LuWu", rate(calm, large) / rate(step, large), 0.328)
    middle, four = MODELS["opt-30b"], replace(PAPER, workers=4)
    ratios = [
        rate(luwu(middle, rows, four), middle) / rate(peer("zero_infinity", middle, rows, four, SHARP), middle)
        for rows in (2, 4, 8, 16)
    ]
    yield Claim("30B, 4 workers: least against ZeRO-Infinity with SHARP", min(ratios), 2.38)
    yield Claim("30B, 4 workers: most against ZeRO-Infinity with SHARP", max(ratios), 3.35)
    for rows, figure in ((2, 1.0), (4, 1.0), (16, 1.58)):
        driven = luwu(large, rows, variant=Variant(driver="gpu"))
        yield Claim(
            f"175B: against pushes and pulls driven by the GPU, micro-batch {rows}",
            driven.seconds / luwu(large, rows).seconds,
            figure,
        )
    colocated = luwu(large, variant=Variant(colocated=True))
    yield Claim("against servers on the workers", colocated.seconds / step.seconds, 1.10)
    moved = colocated.link_bytes["worker, down"] / step.link_bytes["worker, down"]
    yield Claim("traffic of servers on the workers, 8 workers", moved, 1 + 1 / 8)


def scale() -> Iterator[Claim]:
    """Many workers, other machines, and money."""
    large = MODELS["175b"]
    rows = round(GPT3_BATCH_TOKENS / 256 / large.sequence)
    one, many = (hybrid(large, count, rows, "luwu") for count in (1, 256))
    yield Claim("TP 8, PP 16: throughput per replica at 256, of that at 1", one.seconds / many.seconds, 1.0)
    latency = (
        "the paper's simulator, its batch and its latencies are not published; ours has GPT-3's batch (3.2M tokens) "
        "and 10 us a step, so large layers keep even long rings near their bandwidth"
    )
    for algorithm, name, figure in (("tree", "tree collectives", 2.0), ("ring", "rings", 15.1)):
        sharded = hybrid(large, 256, rows, "sharded", algorithm)
        yield Claim(f"256 replicas: against ZeRO-Infinity with {name}", sharded.seconds / many.seconds, figure, latency)
    middle, nvlink = MODELS["opt-13b"], replace(CLUSTERS["dgx-a100"], workers=8)
    yield Claim(
        "13B: against ZeRO-Offload on NVLink",
        rate(luwu(middle), middle) / rate(peer("zero_offload", middle, ROWS, nvlink), middle),
        2.22,
        "the paper does not describe the machine; ours is a DGX A100, whose memory updates 13B in two seconds",
    )
    many_workers, dgx = replace(PAPER, workers=32), CLUSTERS["dgx-a100"]
    ours = 32 * rate(luwu(large, cluster=many_workers), large)
    yield Claim("32 GPUs, 175B: tokens/s", ours, 4386)
    yield Claim(
        "32 GPUs, 175B: tokens/s of ZeRO-Infinity on the same machines",
        32 * rate(peer("zero_infinity", large, ROWS, many_workers), large),
        822,
        "the paper's figure is below four times its own at 8 workers (33.7 per GPU), although each worker updates a "
        "quarter as many parameters; congestion between racks, which we do not have, could do that",
    )
    theirs = 32 * rate(peer("zero_infinity", large, ROWS, dgx), large)
    dgx_note = "where ZeRO-Infinity keeps states on a DGX is not given: we have its 4 NVMe disks, not its memory"
    yield Claim("32 GPUs, 175B: tokens/s of ZeRO-Infinity on 4 DGX", theirs, 3745, dgx_note)
    prices = "list and street prices of ours against the paper's own purchase"
    yield Claim("32 GPUs with LuWu: dollars", cost_of(many_workers).price, 381_920, prices)
    without = cost_of(many_workers, topology="fat_tree", with_servers=False).price
    yield Claim("32 GPUs with ZeRO-Infinity: dollars", without, 354_360, prices)
    nodes = cost_of(dgx, topology="fat_tree", with_servers=False).price
    yield Claim("4 DGX: dollars", nodes, 638_200, prices)
    yield Claim(
        "throughput per dollar against DGX, at the paper's prices",
        (ours / 381_920) / (theirs / 638_200),
        1.96,
        dgx_note,
    )


def elsewhere() -> Iterator[Claim]:
    """Figures of the paper's other sections."""
    large = MODELS["175b"]
    used = peer("zero_infinity", large).utilisation(large, PAPER.gpu.peak_flops, recompute=True)
    yield Claim("175B: MFU of ZeRO-Infinity (with the recompute)", used, 0.15)
    for workers, left in ((32, 30), (64, 18)):
        share = 1 / (1 + workers * ACKNOWLEDGEMENT_BYTES.value / PACKET_BYTES.value)
        yield Claim(f"Gb/s left of 100 with an acknowledgement per packet and {workers} workers", 100 * share, left)
    for gigabits, needed in ((100, 81.4), (200, 163)):
        parameters = gigabits / 8 * GOODPUT_SHARE.value / 2  # G a second, as 2 bytes each come down
        yield Claim(f"SSD GB/s each way in backward at {gigabits} Gb/s", (2 + 12) * parameters, needed)


SHARP = PeerSettings(algorithm="switch")


def luwu(model: ModelShape, rows: int = ROWS, cluster: Cluster = PAPER, variant: Variant | None = None) -> StepTime:
    """A step of the published design, which keeps nothing in the server's memory."""
    return step_time(model, cluster, rows, OnDisk.everything(model.parameters), variant)


def peer(
    system: str,
    model: ModelShape,
    rows: int = ROWS,
    cluster: Cluster = PAPER,
    settings: PeerSettings | None = None,
) -> StepTime:
    """A peer's step at the largest micro-batch that fits."""
    return peer_step(system, model, cluster, rows, settings)


def rate(step: StepTime, model: ModelShape) -> float:
    """Tokens a second of one GPU."""
    return step.tokens_per_second(model)


def largest_peer(system: str) -> int:
    """Parameters of the largest of the paper's models that a peer can train with one sequence."""
    return max(MODELS[name].parameters for name in FAMILY if peer_rows(system, MODELS[name], PAPER, 1, Kernels()))


def luwu_gradient_bytes(model: ModelShape) -> float:
    """Return the bytes of one layer's gradients."""
    alone = replace(model, vocabulary=0, positions=0)
    return luwu_worker(alone, 1, Kernels()).gpu["gradients"] - 2.0 * alone.outside_size


def hybrid(model: ModelShape, replicas: int, rows: int, system: str, algorithm: Algorithm = "ring") -> StepTime:
    """175B in TP 8 and PP 16 on GPUs with 100 Gb/s each."""
    cluster = replace(CLUSTERS["selene"], link_rate=PAPER.link_rate)
    how = Parallelism(tensor=8, pipeline=16, micro_batch=1, kernels=Kernels(fused=True))
    shared = Replicas(replicas, rows, "luwu" if system == "luwu" else "sharded", algorithm)
    return hybrid_step(model, cluster, how, shared)
