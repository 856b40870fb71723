"""Training one worker with its states on disk: luwu against DeepSpeed 0.19 ZeRO-3 with offload_optimizer nvme.

151M parameters (48 blocks, hidden 512), batch 2, sequence 256, bf16, no activation checkpointing on either side, no
clipping. Both sides are up at once and sampled in turn; memory is the peak PSS of a side's processes, start included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kit.common import NotInstalledError, Options, Row, all_of, arguments, result, run, table
from kit.luwu_side import LuwuSide
from kit.processes import Side
from kit.sampling import Bar, compare, in_turn

NAME = "train_vs_deepspeed"
BAR = "at least 1.6x DeepSpeed's tokens/s with at most a third of its peak memory"
LEAST = Bar("luwu", "deepspeed", 1.6)


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    speed, memory = found["tokens_per_second"], found["peak_memory_bytes"]
    shown = {side: f"{speed[side]:.0f} tokens/s, {memory[side] / 1e6:.0f} MB" for side in speed}
    yield "151M parameters, bf16, states on disk, one worker", shown["luwu"], f"DeepSpeed ZeRO-3 {shown['deepspeed']}"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, hidden = options.size((48, 512), quick=(6, 512), check=(1, 64))
    steps = options.effort(2, quick=1, check=1)
    shape = {"layers": layers, "hidden": hidden, "heads": 8, "seq": 256}
    settings = {"shape": shape, "rows": 2, "steps": steps, "warm_up": 2, "folder": str(options.folder)}

    def measure() -> dict[str, Any]:
        sides: dict[str, Side] = {}
        try:
            python = options.peer_python("deepspeed")
            sides["deepspeed"] = Side("deepspeed", "peers/deepspeed_train.py", settings, python=python)
        except NotInstalledError as error:
            options.leave_out("DeepSpeed", error)
        if not options.only_peer:
            ours = {**settings, "dtype": "bfloat16", "checkpoint": False, "memory": "256MiB", "meta": True}
            sides["luwu"] = LuwuSide(ours)
        return weigh(sides, options)

    return run(NAME, BAR, "tokens/s", measure, options)


def weigh(sides: dict[str, Side], options: Options) -> dict[str, Any]:
    """Samples the running sides in turn and weighs them against the bar."""
    parts: dict[str, dict[str, Any]] = {}
    bars = [LEAST] if len(sides) == 2 else []

    def tokens_per_second(name: str) -> float:
        parts[name] = sides[name].sample()[0]
        return float(parts[name]["tokens_per_second"])

    try:
        for side in sides.values():
            side.wait_ready()
        take_round = in_turn({name: lambda name=name: tokens_per_second(name) for name in sides})
        compared = compare(options, take_round, bars, rounds=max(3, options.repeats))
        for side in sides.values():
            side.stop()
        memory = {name: side.peak_bytes for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
    medians = compared.medians
    columns = ("forward", "backward", "update", "seconds")
    table(
        ["side", "tokens/s", *(f"{column} s" for column in columns), "peak MB"],
        [[name, medians[name], *(parts[name][column] for column in columns), memory[name] / 1e6] for name in sides],
    )
    lean = bool(bars) and memory["luwu"] <= memory["deepspeed"] / 3
    details = {
        "tokens_per_second": medians, "last_step": parts, "peak_memory_bytes": memory, "compared": compared.details(),
    }  # fmt: skip
    return result(
        NAME, ours=medians.get("luwu"), peer=medians.get("deepspeed"), bar=BAR, ok=all_of(compared.ok, lean),
        unit="tokens/s", details=details,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
