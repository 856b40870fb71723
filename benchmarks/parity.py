"""The same mathematics: 50 steps of float32 training with 1, 2 and 4 workers against one plain-torch process.

The reference sees the whole global batch and uses torch.optim.AdamW; a worker sees its rows. The loss of a step is
the mean over workers. luwu with two workers runs twice: the two must agree bit for bit.
"""

from __future__ import annotations

import sys
from typing import Any

from common import BenchmarkError, arguments, require_peers, result, run, table
from luwu_side import LuwuSide
from processes import Side

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


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    shape = {"layers": 4, "hidden": 64 if options.quick else 128, "heads": 4, "seq": 64}
    settings = {"shape": shape, "steps": STEPS, "warm_up": 0, "folder": str(options.folder), "checkpoint": True}

    def ours(workers: int) -> list[float]:
        return losses(LuwuSide({**settings, "rows": GLOBAL_ROWS // workers}, ranks=workers, threads=1))

    def measure() -> dict[str, Any]:
        wanted = {**settings, "rows": GLOBAL_ROWS, "checkpoint": False}
        reference = losses(Side("torch", "peers/plain_torch.py", wanted, python=require_peers(), threads=1))
        if options.only_peer:
            table(["step", "torch"], [[step, reference[step]] for step in (0, 9, 24, STEPS - 1)])
            raise BenchmarkError("only the peer was asked for")
        runs = {"N=1": ours(1), "N=2": ours(2), "N=2 again": ours(2), "N=4": ours(4)}
        worst = {
            name: max(abs(a - b) / abs(b) for a, b in zip(found, reference, strict=True))
            for name, found in runs.items()
        }
        repeatable = runs["N=2"] == runs["N=2 again"]
        shown = [[step, reference[step], *(found[step] for found in runs.values())] for step in (0, 9, 24, STEPS - 1)]
        table(["step", "torch", *runs], shown)
        table(["run", "largest relative difference"], [[name, f"{value:.2e}"] for name, value in worst.items()])
        largest = max(worst.values())
        return result(
            NAME, ours=largest, peer=TOLERANCE, bar=BAR, ok=largest <= TOLERANCE and repeatable,
            unit="relative difference of losses", details={"worst": worst, "bit_identical_runs": repeatable},
        )  # fmt: skip

    return run(NAME, BAR, "relative difference of losses", measure)


if __name__ == "__main__":
    sys.exit(main())
