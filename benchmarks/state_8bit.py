"""AdamW's states in 8 bits against float32 ones: how much faster out of core, and what is learned with them.

The rate is that of backward passes without computing: every block of bf16 parameters is pulled, one ahead, and its
gradient pushed, through a small budget; both stores are up at once and sampled in turn. What is learned is the
validation loss of a small GPT on Python's standard library, trained as `luwu train` does, bf16 with fp32 masters on
both sides, in runs that differ in the states alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kit.common import ROOT, BenchmarkError, Options, Row, all_of, arguments, result, run, table
from kit.processes import Side
from kit.sampling import Bar, Comparison, compare, in_turn
from rich.console import Console

from luwu.launch.folder import RunFolder
from luwu.launch.local import LocalRun
from luwu.launch.settings import build_settings
from luwu.observe.display import choose_display

NAME = "state_8bit"
BAR = "at least 2x the optimizer rate of fp32 states out of core; validation loss within 1 % after 500 steps"
MOST_DIFFERENCE = 0.01
BLOCK_ELEMENTS = 12 * 512 * 512
FLOATS, BYTES = "adamw", "adamw8bit"
LEAST = Bar(BYTES, FLOATS, 2.0)
CHECK_TEXT = ROOT / "benchmarks" / "kit" / "common.py"


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    moved, loss, rate = (found[name] for name in ("bytes_per_parameter", "validation_loss", "rates"))
    shown = {
        name: f"{rate[name] / 1e6:.0f} Mparam/s, {moved[name]:.1f} bytes each; validation loss {loss[name]:.3f}"
        for name in moved
    }
    yield "AdamW out of core with states in 8 bits; after 500 steps", shown["adamw8bit"], f"in fp32 {shown['adamw']}"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        compared, per_parameter = measure_rates(options)
        losses = measure_losses(options)
        rates, ratio = compared.medians, compared.ratio(LEAST)
        difference = abs(losses[BYTES] - losses[FLOATS]) / losses[FLOATS]
        rows = [[name, rates[name] / 1e6, per_parameter[name], losses[name]] for name in (FLOATS, BYTES)]
        table(["states", "Mparam/s", "bytes moved per parameter", "validation loss"], rows)
        table(["ratio of rates", "difference of losses"], [[ratio, f"{difference:.2%}"]])
        details = {
            "rates": rates, "bytes_per_parameter": per_parameter, "validation_loss": losses, "difference": difference,
            "compared": compared.details(),
        }  # fmt: skip
        return result(
            NAME, ours=rates[BYTES], peer=rates[FLOATS], ratio=ratio, bar=BAR,
            ok=all_of(compared.ok, difference <= MOST_DIFFERENCE), unit="parameters/s", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "parameters/s", measure, options)


def measure_rates(options: Options) -> tuple[Comparison, dict[str, float]]:
    """Parameters a second of both kinds of states, and bytes read and written for each of them."""
    blocks, memory = options.size((48, 128 << 20), quick=(12, 64 << 20), check=(2, 64 << 20))
    steps = options.effort(3, quick=2, check=1)
    moved: dict[str, list[float]] = {FLOATS: [], BYTES: []}
    with ExitStack() as stack:
        # Held here, because the children are killed.
        stores = stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-"))
        sides = {}
        for name in moved:
            wanted = {
                "blocks": blocks, "block_elements": BLOCK_ELEMENTS, "memory_bytes": memory, "steps": steps,
                "folder": stores, "optimizer": name, "pulls": True,
            }  # fmt: skip
            sides[name] = stack.enter_context(Side(name, "ours/optimizer_disk.py", wanted))
        for side in sides.values():
            side.wait_ready()

        def sample(name: str) -> float:
            found = sides[name].sample()[0]
            moved[name].append(found["bytes_per_parameter"])
            return float(found["parameters_per_second"])

        # A virtual disk's rate differs by a third from one second to the next: many samples.
        take_round = in_turn({name: lambda name=name: sample(name) for name in sides})
        compared = compare(options, take_round, [LEAST], rounds=max(9, options.repeats), share=0.5)
    return compared, {name: statistics.median(found) for name, found in moved.items()}


def measure_losses(options: Options) -> dict[str, float]:
    """Validation loss, nats per byte, after the same steps with both kinds of states."""
    steps, layers, hidden = options.size((500, 4, 128), quick=(60, 2, 64), check=(2, 1, 32))
    losses = {}
    for name in (FLOATS, BYTES):
        settings = build_settings(
            {
                "model": {"layers": layers, "hidden": hidden, "heads": 4, "seq": 128},
                "data": {"path": str(CHECK_TEXT), "validation_windows": 1} if options.check else {},
                "optimizer": {"name": name, "warmup_steps": steps // 10, "decays": "matrices"},
                "run": {"steps": steps, "batch": 8, "workers": 1, "dtype": "bfloat16", "memory": "1GiB"},
                "sample": {"length": 1},
            }
        )
        with ExitStack() as stack:
            run_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-")))
            console = Console(file=stack.enter_context(open(os.devnull, "w")))
            display = stack.enter_context(choose_display(console, steps))
            outcome = LocalRun(settings, RunFolder(run_folder), display).run()
        if outcome.validation_loss is None:
            raise BenchmarkError(f"the run with {name} was stopped after step {outcome.step}")
        losses[name] = outcome.validation_loss
    return losses


if __name__ == "__main__":
    sys.exit(main())
