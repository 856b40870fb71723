"""The cost model against Megatron-LM's published table: 1.7B to 1T parameters on 32 to 3072 A100s.

Figures: arXiv 2104.04473 (SC21), table 1. Micro-batches and interleaving, which the table leaves out, are those of
Megatron-LM's own scripts (NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh), and so are models, parallelism, batches.
The TFLOP/s of three rows were read again elsewhere: 39.1B and 76.1B in scripts that reproduce the table, and 1T, whose
502 PFLOP/s on 3072 GPUs the abstract has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from kit.common import Row, arguments, result, run, table

from luwu.models.shapes import gpt_shape
from luwu.plan.clusters import CLUSTERS
from luwu.plan.megatron import Parallelism, parallel_step

NAME = "plan_megatron"
BAR = "model TFLOP/s per GPU within 15 % of every published row"
WITHIN = 0.15


class Model(NamedTuple):
    """A row of the table; ``parts``: of the model on each pipeline stage."""

    name: str
    heads: int
    hidden: int
    layers: int
    tensor: int
    pipeline: int
    gpus: int
    batch: int
    micro_batch: int
    parts: int
    tflops: float


PUBLISHED = (
    Model("1.7B", 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
    Model("3.6B", 32, 3072, 30, 2, 1, 64, 512, 16, 1, 138),
    Model("7.5B", 32, 4096, 36, 4, 1, 128, 512, 16, 1, 142),
    Model("18.4B", 48, 6144, 40, 8, 1, 256, 1024, 8, 1, 135),
    Model("39.1B", 64, 8192, 48, 8, 2, 512, 1536, 4, 1, 138),
    Model("76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 2, 3, 140),
    Model("145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 2, 2, 148),
    Model("310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 1, 2, 155),
    Model("529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 1, 3, 163),
    Model("1008.0B", 160, 25600, 128, 8, 64, 3072, 3072, 1, 1, 163),
)


def predict(row: Model) -> float:
    """TFLOP/s of each GPU, counted as the table does."""
    model = gpt_shape(row.layers, row.hidden, row.heads, sequence=2048, vocabulary=51200, name=row.name)
    how = Parallelism(
        row.tensor, row.pipeline, row.micro_batch, "interleaved" if row.parts > 1 else "1f1b", row.parts
    )  # fmt: skip
    step = parallel_step(model, replace(CLUSTERS["selene"], workers=row.gpus), row.batch, how)
    return step.flops_per_gpu / 1e12


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    errors = sorted(abs(error) for error in found["errors"].values())
    yield (
        "TFLOP/s per GPU of Megatron-LM on 32 to 3072 A100s, as `luwu plan` has them",
        f"within {errors[-1]:.0%}, median {errors[len(errors) // 2]:.0%}",
        "arXiv 2104.04473",
    )


def main() -> int:
    """Predicts, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        ours = {row.name: predict(row) for row in PUBLISHED}
        errors = {row.name: ours[row.name] / row.tflops - 1 for row in PUBLISHED}
        table(
            ["model", "GPUs", "tensor x pipeline", "ours, TFLOP/s", "published", "error"],
            [
                [
                    row.name,
                    row.gpus,
                    f"{row.tensor} x {row.pipeline}",
                    ours[row.name],
                    row.tflops,
                    f"{errors[row.name]:+.1%}",
                ]
                for row in PUBLISHED
            ],
        )
        worst = max(abs(error) for error in errors.values())
        return result(
            NAME, ours=worst, peer=WITHIN, bar=BAR, ok=True, right=worst <= WITHIN, unit="largest error",
            details={"tflops": ours, "published": {row.name: row.tflops for row in PUBLISHED}, "errors": errors},
        )  # fmt: skip

    return run(NAME, BAR, "largest error", measure, options)


if __name__ == "__main__":
    sys.exit(main())
