"""The constants of the cost model: one table, a source for each. Nothing here belongs to a single figure or model.

What machines can do (GPUs, disks, networks, prices) is in the presets beside this file, each with its own source.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """A number, its unit, and who measured or specified it.

    ``checked``: where it was read again after it had been written down here; empty: nowhere that could be opened.
    """

    value: float
    unit: str
    source: str
    checked: str = ""


CUBLAS_GUIDE = "NVIDIA, Matrix Multiplication Background User's Guide (tiles and wave quantization)"
LUWU_PAPER = "arXiv 2409.00918"
ITSELF = "what this project has of the source's text"
ARITHMETIC = "follows from the sizes that the source names"

GEMM_TILE = Constant(128, "rows of the smaller side of a 128x256 tile", CUBLAS_GUIDE)
GEMM_FILL = Constant(
    128, "elements of the inner dimension before a tile's pipeline is full", "CUTLASS on sm80: 4 stages of 32"
)
MEMORY_SHARE = Constant(
    0.85,
    "of peak memory bandwidth that element-wise kernels reach",
    "NVIDIA developer blog on A100's STREAM-like copies (about 1.3 to 1.4 of 1.555 TB/s)",
)
CPU_UPDATE_SHARE = Constant(
    0.46,
    "of peak host memory bandwidth that DeepSpeed's CPU AdamW reaches",
    "arXiv 2101.06840, table 4: 10B parameters in 2.57 s on a DGX-2 (256 GB/s)",
)
HOST_MEMORY_SHARE = Constant(
    0.7,
    "of peak host memory bandwidth that an update loop reaches",
    "STREAM on two EPYC 7xx2: 280 to 290 of 410",
)
GOODPUT_SHARE = Constant(
    0.931,
    "of a link's rate that is payload of packets",
    f"{LUWU_PAPER}: 11.64 GB/s of parameters on 100 Gb/s",
    checked=ITSELF,
)
RDMA_SHARE = Constant(
    0.975,
    "of a link's rate that is payload of RoCEv2 at an MTU of 4096",
    "IB/RoCEv2 headers: 4096 of 4096 + 98 bytes",
    checked=ARITHMETIC,
)
COLLECTIVE_EXPOSED = Constant(
    0.65,
    "of a collective's time beside GEMMs that they do not hide",
    f"{LUWU_PAPER}: GEMMs that fill the SMs block it",
    checked=ITSELF,
)
COLLECTIVE_SLOWED = Constant(
    0.70,
    "of its bandwidth alone that a collective of two GPUs keeps beside GEMMs",
    f"{LUWU_PAPER}: NCCL drops by 30 %, which its figures for 2, 4 and 8 GPUs have at 2",
    checked=ITSELF,
)
UPDATE_FLOP = Constant(
    17, "flop of AdamW per parameter", f"{LUWU_PAPER}, table of the optimizer pipeline", checked=ITSELF
)
UPDATE_MEMORY_BYTES = Constant(
    60,
    "bytes of server memory traffic per parameter in backward",
    f"{LUWU_PAPER}: 349 GB/s at 5.82 G parameters/s; disk in 14, out 14, gradient in and out 4, AdamW 28",
    checked=ITSELF,
)
FORWARD_MEMORY_BYTES = Constant(
    4,
    "bytes of server memory traffic per parameter in forward",
    f"{LUWU_PAPER}: 23.3 GB/s at 11.64 GB/s sent",
    checked=ITSELF,
)
ACKNOWLEDGEMENT_BYTES = Constant(
    84,
    "bytes on the wire of the smallest frame, an acknowledgement",
    "IEEE 802.3: 64, preamble 8, gap 12",
    checked=ARITHMETIC,
)
PACKET_BYTES = Constant(
    1100,
    "bytes on the wire of a packet of 1024 bytes of payload",
    f"{LUWU_PAPER}: 1024 / 1100 = 0.931, its goodput",
    checked=ARITHMETIC,
)
LOSS_BYTES_PER_LOGIT = Constant(
    24,
    "bytes moved per logit by an unfused cross-entropy, both ways",
    "torch: cast 2+2+4, log_softmax 4+4, backward 4+4",
    checked=ARITHMETIC,
)
LOSS_BYTES_KEPT_PER_LOGIT = Constant(
    10,
    "bytes held per logit by an unfused cross-entropy",
    "torch: bf16 logits 2, fp32 copy 4, fp32 gradient 4",
    checked=ARITHMETIC,
)
GPU_RESERVE_BYTES = Constant(
    2e9, "bytes of a GPU that context, NCCL and the allocator's fragments take", "CUDA context 0.5 GB, NCCL 1 GB, rest"
)
SYSTEM_RESERVE_BYTES = Constant(
    4e9, "bytes of a machine's memory that a run leaves to its system", "Ubuntu's desktop asks for 4 GB"
)
WORKER_PROCESS_BYTES = Constant(
    2e9,
    "bytes of host memory of a worker's process: interpreter, torch, the GPU's context and driver",
    "resident size of torch processes with a CUDA context",
)
SERVER_PROCESS_BYTES = Constant(
    2**27,
    "bytes of a server's process beyond its budget",
    "benchmarks/out_of_core: its bar is the budget plus 128 MiB",
    checked=ITSELF,
)
CPU_UPDATE_BYTES = Constant(
    30,
    "bytes of host memory traffic per parameter of a CPU AdamW",
    "read 4+4+4 and gradient 2 (+4), write 4+4+4+2",
    checked=ARITHMETIC,
)
SWAP_READ_BYTES = Constant(
    16, "bytes read per parameter by a swapped AdamW", "DeepSpeed 0.19 swap_tensor: fp32 master, m, v, gradient"
)
SWAP_WRITE_BYTES = Constant(
    18, "bytes written per parameter by a swapped AdamW", "DeepSpeed 0.19 swap_tensor: master, m, v, gradient, copy 2"
)
HOP_SECONDS = Constant(
    10e-6, "latency of one step of a collective between hosts", "NCCL tests on RoCE: 8 to 12 us a step of a ring"
)
NVLINK_SHARE = Constant(
    0.77, "of NVLink's rate that collectives within a host reach", "nccl-tests on DGX A100: 230 to 235 of 300 GB/s"
)
NVLINK_HOP_SECONDS = Constant(2e-6, "latency of one step of a collective within a host", "nccl-tests on DGX A100")
HEARTBEAT_SECONDS = Constant(
    0.5e-3,
    "between two heartbeats of a switch",
    "benchmarks/network_heartbeats: 1950 to 2000 a second under load",
    checked=ITSELF,
)
FP32_SLOWDOWN = Constant(
    16,
    "times as long as in bf16 that a product in float32 takes, without TF32",
    "A100's data sheet: 19.5 of 312 TFLOP/s",
    checked="lambdalabs.com, A100 benchmarks: 19.5 and 312",
)
