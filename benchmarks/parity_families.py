"""Every causal language model of the installed transformers, small: do they train as with plain torch?

Each family is made small by one table of sizes (harness/every_family.py). A copy of it trains with torch.optim.AdamW,
the model itself with `luwu.AdamW` and a store of its own: the same first values, the same batches, float32, one worker.
Families whose sizes the table cannot make small are left out, with the reason.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.losses import within, worst_difference

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import transformers
from torch import nn

import luwu
from harness.every_family import batch, families, make_small
from luwu.errors import LuwuError

NAME = "parity_families"
BAR = "losses within 1e-5 relative of plain torch, every causal family of transformers that one table makes small"
UNIT = "relative difference of losses"
TOLERANCE = 1e-5
SEED = 20
STEPS = 3
SLOW = ("falcon_h1", "nemotron_h")
"""Families whose step takes seconds at any size: a full run alone has them."""

REFUSED = {"hrm_text": "its layers run several times with one cache; with use_cache=False it has none"}
"""Families that LuWu refuses by name, and why."""


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Train, and return the loss of each step."""
    torch.manual_seed(SEED)
    found = []
    for step in range(steps):
        loss = model(**batch(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def difference(model: nn.Module, folder: Path, steps: int) -> float:
    """Return the largest relative difference of a loss between LuWu and plain torch."""
    twin = copy.deepcopy(model)
    expected = losses(twin, torch.optim.AdamW(twin.parameters(), lr=1e-3), steps)
    with luwu.open(folder, memory="64MiB") as session:
        luwu.parallelize(model, session)
        found = losses(model, luwu.AdamW(model, lr=1e-3), steps)
    return worst_difference(found, expected)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    refused = f"; {', '.join(found['refused'])} refused by name" if found["refused"] else ""
    yield (
        f"losses of {len(found['worst'])} causal families of transformers {found['transformers']}, small, "
        f"{found['steps']} steps",
        f"within {within(max(found['worst'].values()))} of plain torch{refused}",
        "1e-5",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    transformers.logging.set_verbosity_error()

    def measure() -> dict[str, Any]:
        torch.set_num_threads(1)
        every = families()
        most = [family for family in every if family not in SLOW]
        worst: dict[str, float] = {}
        refused: dict[str, str] = {}
        left_out: dict[str, str] = {}
        for family in options.size(every, quick=most, check=["gpt_neox", "mamba"]):
            try:
                model = make_small(family, SEED)
            except Exception as error:  # a class of transformers raises what it likes
                left_out[family] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            with tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-") as folder:
                try:
                    worst[family] = difference(model, Path(folder, "run"), STEPS)
                except LuwuError as error:
                    refused[family] = str(error)
        table(["family", "largest relative difference"], list(worst.items()))
        for what, found in (("refused", refused), ("left out", left_out)):
            table(["family", what], list(found.items()))
        largest, unexpected = max(worst.values()), sorted(set(refused) - set(REFUSED))
        return result(
            NAME, ours=largest, peer=TOLERANCE, bar=BAR, ok=not unexpected, right=largest <= TOLERANCE, unit=UNIT,
            details={"worst": worst, "refused": refused, "left_out": left_out, "steps": STEPS,
                     "transformers": transformers.__version__},
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
