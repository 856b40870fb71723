"""The same mathematics: 50 steps of float32 training with 1, 2 and 4 workers against one plain-torch process.

The reference sees the whole global batch and uses torch.optim.AdamW; a worker sees its rows. The loss of a step is
the mean over workers. luwu with two workers runs twice: the two must agree bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import BenchmarkError, Row, arguments, result, run, table
from kit.losses import within, worst_difference
from kit.luwu_side import LuwuSide
from kit.processes import Side

NAME = "parity"
BAR = "losses within 1e-5 relative of plain torch at N = 1, 2, 4; two runs of ours agree bit for bit"
TOLERANCE = 1e-5
STEPS = 50
GLOBAL_ROWS = 8


def losses(side: Side) -> list[float]:
    """Mean over ranks of each step's loss."""
    with side:
        side.wait_ready()
        of_ranks = [sample["losses"] for sample in side.sample()]
        return [sum(step) / len(step) for step in zip(*of_ranks, strict=True)]


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    worst = max(found["worst"].values())
    same = "the same bits" if found["bit_identical_runs"] else "**other bits**"
    yield "losses against plain torch, 50 steps, 1, 2, 4 workers", f"within {within(worst)}; two runs: {same}", "1e-5"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, hidden, steps = options.size((4, 128, STEPS), check=(1, 32, 2))
    shape = {"layers": layers, "hidden": hidden, "heads": 4, "seq": 64}
    settings = {"shape": shape, "steps": steps, "warm_up": 0, "folder": str(options.folder), "checkpoint": True}

    def ours(workers: int) -> list[float]:
        return losses(LuwuSide({**settings, "rows": GLOBAL_ROWS // workers}, ranks=workers, threads=1))

    def measure() -> dict[str, Any]:
        wanted = {**settings, "rows": GLOBAL_ROWS, "checkpoint": False}
        reference = losses(Side("torch", "peers/plain_torch.py", wanted, python=options.peer_python(), threads=1))
        if options.only_peer:
            table(["step", "torch"], [[step, reference[step]] for step in (0, steps // 2, steps - 1)])
            raise BenchmarkError("only the peer was asked for")
        numbers = options.size({"N=1": 1, "N=2": 2, "N=2 again": 2, "N=4": 4}, check={"N=2": 2})
        runs = {name: ours(workers) for name, workers in numbers.items()}
        worst = {name: worst_difference(found, reference) for name, found in runs.items()}
        repeatable = runs["N=2"] == runs.get("N=2 again", runs["N=2"])
        some = (0, steps // 2, steps - 1)
        shown = [[step, reference[step], *(found[step] for found in runs.values())] for step in some]
        table(["step", "torch", *runs], shown)
        table(["run", "largest relative difference"], [[name, f"{value:.2e}"] for name, value in worst.items()])
        largest = max(worst.values())
        return result(
            NAME, ours=largest, peer=TOLERANCE, bar=BAR, ok=True, right=largest <= TOLERANCE and repeatable,
            unit="relative difference of losses", details={"worst": worst, "bit_identical_runs": repeatable},
        )  # fmt: skip

    return run(NAME, BAR, "relative difference of losses", measure, options)


if __name__ == "__main__":
    sys.exit(main())
