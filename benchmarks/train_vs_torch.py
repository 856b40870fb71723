"""Training on 1, 2 and 4 worker processes of this machine: luwu against FSDP2 and DDP over gloo.

Same model (12 blocks, hidden 512), same activation checkpointing, same batch on every rank. float32 against float32,
bfloat16 against FSDP2's mixed precision. tokens/s are those of all ranks together. Peers run with tcmalloc, which
every side of every benchmark has, and with glibc's malloc, as torchrun starts them; the faster one counts. The second
is left out with --quick.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

from common import arguments, median_alternating, require_peers, result, run, table
from luwu_side import LuwuSide
from processes import Side, slowest

NAME = "train_vs_torch"
BAR = "ahead of FSDP2 at every N (float32 and bfloat16), not behind DDP at any"
PEERS = {"float32": ("fsdp2", "ddp"), "bfloat16": ("fsdp2",)}
Allocators = dict[str, dict[str, str]]
TCMALLOC: Allocators = {"": {}}
BOTH_ALLOCATORS: Allocators = {**TCMALLOC, ", glibc malloc": {"LD_PRELOAD": ""}}


def measure_group(
    settings: dict[str, Any], dtype: str, ranks: int, allocators: Allocators, repeats: int, only_peer: bool
) -> tuple[dict[str, float], dict[str, int]]:
    """Tokens per second and peak memory (bytes) of each side at one number of ranks."""
    wanted = {**settings, "dtype": dtype, "checkpoint": True}
    python = require_peers()
    with ExitStack() as stack:
        sides = {
            peer + allocator: stack.enter_context(
                Side(peer, f"peers/{peer}_train.py", wanted, ranks=ranks, python=python, env=env)
            )
            for peer in PEERS[dtype]
            for allocator, env in allocators.items()
        }
        if not only_peer:
            sides["luwu"] = stack.enter_context(LuwuSide(wanted, ranks=ranks))
        for side in sides.values():
            side.wait_ready()
        tokens = ranks * settings["rows"] * settings["shape"]["seq"]

        def tokens_per_second(side: Side) -> float:
            return tokens / slowest(side.sample(), "seconds")

        speed = median_alternating(
            {name: lambda side=side: tokens_per_second(side) for name, side in sides.items()}, repeats
        )
        for side in sides.values():
            side.stop()
        return speed, {name: side.peak_bytes for name, side in sides.items()}


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, steps, groups = (4, 1, (2,)) if options.quick else (12, 3, (1, 2, 4))
    allocators = TCMALLOC if options.quick else BOTH_ALLOCATORS
    shape = {"layers": layers, "hidden": 512, "heads": 8, "seq": 256}
    settings = {"shape": shape, "rows": 2, "steps": steps, "warm_up": 2, "folder": str(options.folder)}

    def measure() -> dict[str, Any]:
        rows, ratios = [], []
        for ranks in groups:
            for dtype in PEERS:
                speed, memory = measure_group(settings, dtype, ranks, allocators, options.repeats, options.only_peer)
                best = max(found for name, found in speed.items() if name != "luwu")
                rows += [[ranks, dtype, name, speed[name], memory[name] / 1e6] for name in speed]
                ratios.append((speed.get("luwu", 0.0) / best, speed.get("luwu"), best))
        table(["N", "dtype", "side", "tokens/s", "peak MB"], rows)
        worst = min(ratios)
        names = ("ranks", "dtype", "side", "tokens_per_second", "peak_memory_mb")
        details = {"measured": [dict(zip(names, row, strict=True)) for row in rows]}
        return result(
            NAME, ours=worst[1], peer=worst[2], ratio=worst[0], bar=BAR, ok=worst[0] >= 1.0, unit="tokens/s",
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, "tokens/s", measure)


if __name__ == "__main__":
    sys.exit(main())
