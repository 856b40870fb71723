"""Training one worker with its states on disk: luwu against DeepSpeed 0.19 ZeRO-3 with offload_optimizer nvme.

151M parameters (48 blocks, hidden 512), batch 2, sequence 256, bf16, no activation checkpointing on either side, no
clipping. Both sides are up at once and sampled in turn; memory is the peak PSS of a side's processes, start included.
"""

from __future__ import annotations

import sys
from typing import Any

from common import arguments, median_alternating, require_peers, result, run, table
from luwu_side import LuwuSide
from processes import Side

NAME = "train_vs_deepspeed"
BAR = "at least 1.6x DeepSpeed's tokens/s with at most a third of its peak memory"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, steps = (6, 1) if options.quick else (48, 2)
    shape = {"layers": layers, "hidden": 512, "heads": 8, "seq": 256}
    settings = {"shape": shape, "rows": 2, "steps": steps, "warm_up": 2, "folder": str(options.folder)}

    def measure() -> dict[str, Any]:
        python = require_peers()
        sides = {"deepspeed": Side("deepspeed", "peers/deepspeed_train.py", settings, python=python)}
        if not options.only_peer:
            ours = {**settings, "dtype": "bfloat16", "checkpoint": False, "memory": "256MiB", "meta": True}
            sides["luwu"] = LuwuSide(ours)
        return compare(sides, options.repeats)

    return run(NAME, BAR, "tokens/s", measure)


def compare(sides: dict[str, Side], repeats: int) -> dict:
    """Samples the running sides in turn and weighs them against the bar."""
    parts: dict[str, dict] = {}

    def tokens_per_second(name: str) -> float:
        parts[name] = sides[name].sample()[0]
        return float(parts[name]["tokens_per_second"])

    try:
        for side in sides.values():
            side.wait_ready()
        medians = median_alternating({name: lambda name=name: tokens_per_second(name) for name in sides}, repeats)
        for side in sides.values():
            side.stop()
        memory = {name: side.peak_bytes for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
    columns = ("forward", "backward", "update", "seconds")
    table(
        ["side", "tokens/s", *(f"{column} s" for column in columns), "peak MB"],
        [[name, medians[name], *(parts[name][column] for column in columns), memory[name] / 1e6] for name in sides],
    )
    ours, peer = medians.get("luwu"), medians["deepspeed"]
    lean = ours is not None and memory["luwu"] <= memory["deepspeed"] / 3
    ok = ours is not None and ours >= 1.6 * peer and lean
    details = {"tokens_per_second": medians, "last_step": parts, "peak_memory_bytes": memory}
    return result(NAME, ours=ours, peer=peer, bar=BAR, ok=ok, unit="tokens/s", details=details)


if __name__ == "__main__":
    sys.exit(main())
