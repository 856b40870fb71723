"""Clipping by the global norm against none, out of core: with a limit that no step reaches, and one that all exceed.

The three sides train the same model from the same values on the same batches, each with a server of its own whose
budget is about a fifth of its store. The bar is on steps of 2048 tokens. Steps of 32 tokens stand beside them: there
the disk sets the pace, and what clipping adds to its traffic and takes from its overlap shows in full.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from kit.common import Options, Row, all_of, arguments, result, run, table
from kit.processes import Side
from kit.sampling import Bar, Comparison, compare

NAME = "clipping"
BAR = "at most 5 % slower than without, whether it clips or not, in both dtypes; the same losses where it never clips"
UNIT = "seconds of a step, over those without clipping; the worst"
LIMITS = {"off": None, "never clips": 1e6, "always clips": 1e-3}
MOST = 1.05
HIDDEN = 512
DTYPES = ("bfloat16", "float32")
ROWS = 8
BARS = [Bar(name, "off", MOST, at_least=False) for name in ("never clips", "always clips")]


def measure(
    options: Options, dtype: str, seq: int, rows: int, share: float
) -> tuple[dict[str, dict[str, Any]], Comparison]:
    """Return every side's medians with whether it did what its name says, and what the rounds decide."""
    layers, memory = options.size((32, 256 << 20), quick=(6, 128 << 20), check=(1, 64 << 20))
    hidden = options.size(HIDDEN, check=64)
    parameters = layers * 12 * hidden * hidden
    settings = {
        "shape": {"layers": layers, "hidden": hidden, "heads": 8, "seq": seq}, "rows": rows,
        "steps": 1, "dtype": dtype, "checkpoint": True, "meta": True,
        "memory": memory, "threads": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in LIMITS}
    with ExitStack() as stack:
        # Held here, because the children are killed.
        stores = stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder, prefix="luwu-"))
        sides = {}
        for name, limit in LIMITS.items():
            wanted = {**settings, "folder": stores, "max_grad_norm": limit}
            sides[name] = stack.enter_context(Side(name, "ours/clipping.py", wanted))
            sides[name].wait_ready()

        def take_round() -> dict[str, float]:
            for name, side in sides.items():
                samples[name].append(side.sample()[0])
            return {name: found[-1]["seconds"] for name, found in samples.items()}

        comparison = compare(
            options, take_round, BARS, rounds=max(7, options.repeats), family=len(DTYPES) * len(BARS), share=share
        )
    columns = ("seconds", "forward", "backward", "update", "bytes_read", "bytes_written")
    found: dict[str, dict[str, Any]] = {}
    for name, taken in samples.items():
        found[name] = {column: statistics.median(sample[column] for sample in taken) for column in columns}
        found[name]["ratio"] = comparison.ratio(Bar(name, "off", MOST, at_least=False))
        steps = sum(len(sample["losses"]) for sample in taken)
        found[name]["clipped"] = sum(sample["clipped"] for sample in taken) / steps
    same = all(
        one["losses"] == other["losses"] for one, other in zip(samples["off"], samples["never clips"], strict=True)
    )
    found["never clips"]["same_losses"] = same
    print(f"\n{dtype}, steps of {seq * rows} tokens, {parameters / 1e6:.0f}M parameters")
    per = 1 / parameters
    table(
        ["side", "s/step", "of off", "forward s", "backward s", "step() s", "read B/param", "written B/param"],
        [
            [name, *(row[c] for c in ("seconds", "ratio", "forward", "backward", "update")),
             row["bytes_read"] * per, row["bytes_written"] * per]
            for name, row in found.items()
        ],
    )  # fmt: skip
    return found, comparison


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for case, sides in found.items():
        never, always = sides["never clips"], sides["always clips"]
        yield (
            f"clipping out of core, {case} a step",
            f"{never['ratio']:.2f} times the step without where it never clips, {always['ratio']:.2f} where always",
            f"1; the same losses: {'yes' if never['same_losses'] else '**no**'}",
        )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure_all() -> dict[str, Any]:
        details, compared = {}, []
        barred = options.size((256, ROWS), quick=(32, ROWS), check=(32, 1))
        dtypes = options.size(DTYPES, check=DTYPES[1:])
        for number, dtype in enumerate(dtypes):
            for seq, rows in options.effort((barred, (32, 1)), quick=(barred,), check=(barred,)):
                found, comparison = measure(options, dtype, seq, rows, 1 / (len(dtypes) - number))
                details[f"{dtype}, {seq * rows} tokens"] = found
                if (seq, rows) == barred:
                    compared.append(comparison)
        worst = max(comparison.ratio(bar) for comparison in compared for bar in BARS)
        right = all(
            found["never clips"]["same_losses"]
            and found["never clips"]["clipped"] == 0
            and found["always clips"]["clipped"] == 1
            for found in details.values()
        )
        ok = all_of(*(comparison.ok for comparison in compared))
        return result(NAME, ours=worst, peer=1.0, bar=BAR, ok=ok, right=right, unit=UNIT, details=details)

    return run(NAME, BAR, UNIT, measure_all, options)


if __name__ == "__main__":
    sys.exit(main())
