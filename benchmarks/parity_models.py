"""Models people have: 20 clipped steps of each family in float32 against plain torch, tied and frozen parts included.

Both sides start from the same bits and see the same batches. luwu opens a store for each model in its worker process.
What can be shared out among workers without changing the mathematics runs with two as well: not batch norms and a
mixture's balancing loss, which depend on who sees which rows.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError, Row, arguments, result, run, table
from kit.losses import within, worst_difference
from kit.processes import Side

NAME = "parity_models"
BAR = "losses within 1e-5 relative of plain torch, every family, 20 steps"
TOLERANCE = 1e-5
STEPS = 20
MAX_GRAD_NORM = 1.0
"""Global norm that both sides clip gradients to."""

FAMILIES = (
    "gpt2", "opt", "llama", "llama_tied", "qwen2", "qwen3", "mixtral", "recurrent_gemma", "bert_mlm", "bert_classifier",
    "vit", "t5", "cnn",
)  # fmt: skip
FROZEN = ("gpt2 frozen", "llama frozen", "bert_classifier frozen", "cnn frozen")
TWO_WORKERS = ("gpt2", "llama", "llama frozen", "recurrent_gemma", "bert_classifier", "vit", "t5")


def losses(side: Side) -> dict[str, list[float]]:
    """Mean over ranks of each step's loss, by variant."""
    with side:
        side.wait_ready()
        of_ranks = [sample["losses"] for sample in side.sample()]
    return {
        variant: [sum(step) / len(step) for step in zip(*(found[variant] for found in of_ranks), strict=True)]
        for variant in of_ranks[0]
    }


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    worst = found["worst"]
    families = len({case.rpartition(",")[0] for case in worst})
    yield (
        f"losses of {families} models of transformers and others, clipped, 20 steps, 1 and 2 workers",
        f"within {within(max(worst.values()))} of plain torch",
        "1e-5",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    variants = list(options.size((*FAMILIES, *FROZEN), check=("gpt2", "cnn frozen")))
    steps, of_two = options.size((STEPS, TWO_WORKERS), check=(2, ()))
    settings = {"steps": steps, "max_grad_norm": MAX_GRAD_NORM}

    def ours(chosen: Sequence[str], workers: int) -> dict[str, list[float]]:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
            wanted = {**settings, "variants": chosen, "folder": folder}
            return losses(Side("luwu", "ours/families.py", wanted, ranks=workers, threads=1))

    def measure() -> dict[str, Any]:
        # With this Python: the peers' environment has torch, but no models.
        wanted = {**settings, "variants": variants}
        reference = losses(Side("torch", "peers/families.py", wanted, python=Path(sys.executable), threads=1))
        if options.only_peer:
            table(["model", "first", "last"], [[name, found[0], found[-1]] for name, found in reference.items()])
            raise BenchmarkError("only the peer was asked for")
        runs = {1: ours(variants, 1)} | ({2: ours(of_two, 2)} if of_two else {})
        worst = {
            f"{variant}, {workers}": worst_difference(found, reference[variant])
            for workers, of_variants in runs.items()
            for variant, found in of_variants.items()
        }
        rows = [
            [variant, workers, reference[variant][0], reference[variant][-1], found[-1], worst[f"{variant}, {workers}"]]
            for workers, of_variants in runs.items()
            for variant, found in of_variants.items()
        ]
        table(["model", "workers", "torch, first", "torch, last", "luwu, last", "largest relative difference"], rows)
        largest = max(worst.values())
        return result(
            NAME, ours=largest, peer=TOLERANCE, bar=BAR, ok=True, right=largest <= TOLERANCE,
            unit="relative difference of losses", details={"worst": worst, "max_grad_norm": MAX_GRAD_NORM},
        )  # fmt: skip

    return run(NAME, BAR, "relative difference of losses", measure, options)


if __name__ == "__main__":
    sys.exit(main())
