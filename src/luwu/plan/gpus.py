"""GPUs by name, each figure from its data sheet or from a measurement that is named."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.plan.constants import Constant

MATRIX_SHARE = Constant(
    0.843, "of peak that GEMMs sustain where nobody measured it", "263 of 312 on A100 SXM: arXiv 2408.14158, table 2"
)


@dataclass(frozen=True)
class Gpu:
    """A processor that workers compute on. Rates are of one direction, in bytes or flop a second.

    ``matrix_flops`` is what large GEMMs sustain in bf16; ``peak_flops`` is what MFU is counted against. ``units`` are
    what tiles of a GEMM are given to; 0: any number (a CPU, or one that was measured as a whole).
    """

    name: str
    peak_flops: float
    matrix_flops: float
    memory_bytes: float
    memory_rate: float
    host_rate: float
    units: int
    watts: float
    source: str
    peer_rate: float = 0.0
    """Bytes a second to the other GPUs of its host over NVLink; 0: none."""


def _gpu(
    name: str,
    peak_tflops: float,
    matrix_tflops: float | None,
    memory_gib: float,
    memory_gb: float,
    host_gb: float,
    units: int,
    watts: float,
    source: str,
    peer_gb: float = 0.0,
) -> Gpu:
    peak = peak_tflops * 1e12
    matrix = peak * MATRIX_SHARE.value if matrix_tflops is None else matrix_tflops * 1e12
    return Gpu(
        name, peak, matrix, memory_gib * 2**30, memory_gb * 1e9, host_gb * 1e9, units, watts, source, peer_gb * 1e9
    )


_SHEET = "NVIDIA's data sheet"
_UNCHECKED = f"{_SHEET}, not read again"
_HOPPER = f"{_SHEET}, as in glennklockwood.com's notes"
_MEASURED = (
    f"{_SHEET}, memory and watts as in thundercompute.com's guide to the A100; GEMM as measured in arXiv 2408.14158, "
    "table 2, not read again (courses.d2l.ai's transformers-benchmarks measured 230 on an 80 GB one)"
)
# Host links carry about 0.8 of what their lanes do: 12.5 of 15.75 GB/s on PCIe 3, 25 of 31.5 on 4, 50 of 63 on 5.
_PCIE3, _PCIE4, _PCIE5 = 12.5, 25.0, 50.0

GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100-40gb-pcie", 312, 220, 40, 1555, _PCIE4, 108, 250, _MEASURED),
        _gpu("a100-40gb-pcie3", 312, 220, 40, 1555, _PCIE3, 108, 250, f"{_MEASURED}; in a PCIe 3 slot"),
        _gpu("a100-80gb-pcie", 312, 220, 80, 1935, _PCIE4, 108, 300, _MEASURED),
        _gpu("a100-40gb-sxm", 312, 263, 40, 1555, _PCIE4, 108, 400, _MEASURED, 300),
        _gpu("a100-80gb-sxm", 312, 263, 80, 2039, _PCIE4, 108, 400, _MEASURED, 300),
        _gpu("h100-80gb-pcie", 756, None, 80, 2000, _PCIE5, 114, 350, _UNCHECKED),
        _gpu("h100-80gb-sxm", 989, None, 80, 3350, _PCIE5, 132, 700, _HOPPER, 450),
        _gpu("h200-141gb-sxm", 989, None, 131, 4800, _PCIE5, 132, 700, _HOPPER, 450),
        _gpu(
            "v100-32gb-sxm",
            125,
            None,
            32,
            900,
            _PCIE3,
            80,
            300,
            f"{_SHEET}, rates as in courses.d2l.ai's transformers-benchmarks",
            150,
        ),
        _gpu("l40s", 362, None, 48, 864, _PCIE4, 142, 350, f"{_SHEET}, as in llmbook.apartsin.com, appendix G.1"),
        _gpu("rtx-3090", 71, None, 24, 936, _PCIE4, 82, 350, _UNCHECKED),
        _gpu("rtx-4090", 165, None, 24, 1008, _PCIE4, 128, 450, _UNCHECKED),
    )
}
