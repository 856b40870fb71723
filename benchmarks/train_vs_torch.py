"""Training on 1, 2 and 4 worker processes of this machine: luwu against FSDP2 and DDP over gloo.

Same model (12 blocks, hidden 512), same activation checkpointing, same batch on every rank. float32 against float32,
bfloat16 against FSDP2's mixed precision, on processors that have instructions for it. tokens/s are those of all ranks
together. luwu puts every tenth step on the disk, and each of its samples is ten steps with such a one in the middle, so
that all of its writes are in the sample; with every step on the disk, its default, it is shown beside. Peers run with
tcmalloc, which every side of every benchmark has, and with glibc's malloc, as torchrun starts them; the faster one
counts. The second is left out with --quick.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from kit.common import Options, Row, all_of, arguments, machine, result, run, table
from kit.luwu_side import LuwuSide
from kit.processes import Side, slowest
from kit.sampling import Bar, Comparison, compare, in_turn

NAME = "train_vs_torch"
BAR = "every tenth step on the disk: ahead of FSDP2 at every N (float32 and bfloat16), not behind DDP at any"
EVERY = 10
OURS: dict[str, dict[str, Any]] = {
    "luwu": {"durable": f"{EVERY} steps", "warm_up": EVERY + EVERY // 2, "steps": EVERY, "wait": "answer"},
    "luwu, every step": {"durable": "step"},
}
"""The sides of luwu, and what they have of their own."""
PEERS = {"float32": ("fsdp2", "ddp"), "bfloat16": ("fsdp2",)}
Allocators = dict[str, dict[str, str]]
TCMALLOC: Allocators = {"": {}}
BOTH_ALLOCATORS: Allocators = {**TCMALLOC, ", glibc malloc": {"LD_PRELOAD": ""}}


def measure_group(
    options: Options, settings: dict[str, Any], dtype: str, ranks: int, share: float
) -> tuple[Comparison, dict[str, int]]:
    """Tokens per second and what they decide, and peak memory (bytes) of each side at one number of ranks.

    `share`: the part of the time that is left which --quick may take.
    """
    wanted = {**settings, "dtype": dtype, "checkpoint": True}
    python = options.peer_python()
    allocators = options.effort(BOTH_ALLOCATORS, quick=TCMALLOC, check=TCMALLOC)
    with ExitStack() as stack:
        sides = {
            peer + allocator: stack.enter_context(
                Side(peer, f"peers/{peer}_train.py", wanted, ranks=ranks, python=python, env=env)
            )
            for peer in PEERS[dtype]
            for allocator, env in allocators.items()
        }
        bars = [] if options.only_peer else [Bar("luwu", peer, 1.0) for peer in sides]
        if not options.only_peer:
            for name, own in OURS.items():
                sides[name] = stack.enter_context(LuwuSide({**wanted, **own}, ranks=ranks))
        for side in sides.values():
            side.wait_ready()
        tokens = ranks * settings["rows"] * settings["shape"]["seq"]

        def tokens_per_second(side: Side) -> float:
            return tokens / slowest(side.sample(), "seconds")

        take_round = in_turn({name: lambda side=side: tokens_per_second(side) for name, side in sides.items()})
        compared = compare(options, take_round, bars, rounds=max(3, options.repeats), share=share)
        for side in sides.values():
            side.stop()
        return compared, {name: side.peak_bytes for name, side in sides.items()}


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    for group, speed in _speeds(found).items():
        tenth, each = (f"{speed[name]:.0f}" for name in OURS)
        peers = "; ".join(f"{name} {rate:.0f}" for name, rate in speed.items() if name not in OURS)
        yield f"training, {group}", f"every tenth step on the disk: {tenth} tokens/s; every step: {each}", peers


def note(found: Mapping[str, Any]) -> str:
    """Return the text below the rows: the peers that are faster, and why a peer may be."""
    faster = []
    for group, speed in _speeds(found).items():
        peers = dict.fromkeys(
            name.partition(",")[0] for name, rate in speed.items() if name not in OURS and rate > speed["luwu"]
        )
        if peers:
            faster.append(f"{' and '.join(peers)} ({group})")
    return (
        f"Training faster than LuWu: {'; '.join(faster) or 'no peer'}. FSDP2 and DDP keep nothing on disk, and "
        "one worker has no collective operation to save ([where the time goes](decisions/0005-shared-processors.md))."
    )


def _speeds(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the tokens per second of each side, by number of workers and dtype in words."""
    groups: dict[str, dict[str, float]] = {}
    for row in found["measured"]:
        group = f"{row['ranks']} worker{'s' * (row['ranks'] > 1)}, {row['dtype']}"
        groups.setdefault(group, {})[row["side"]] = row["tokens_per_second"]
    return groups


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, hidden = options.size((12, 512), quick=(4, 512), check=(1, 64))
    groups = options.size((1, 2, 4), quick=(2,), check=(1,))
    steps, warm_up = options.effort((3, 2), quick=(1, 2), check=(1, 1))
    shape = {"layers": layers, "hidden": hidden, "heads": 8, "seq": options.size(256, check=32)}
    settings = {"shape": shape, "rows": 2, "steps": steps, "warm_up": warm_up, "folder": str(options.folder)}
    dtypes = options.size(tuple(PEERS), check=("float32",))
    all_dtypes = "avx512_bf16" in machine()["vector_sets"] or "bfloat16" not in dtypes
    if not all_dtypes:
        options.left_out.append("bfloat16: this processor has no instructions for it; torch takes minutes for a step")
        dtypes = ("float32",)
    kinds = [(ranks, dtype) for ranks in groups for dtype in dtypes]

    def measure() -> dict[str, Any]:
        rows, ratios, compared = [], [], []
        for number, (ranks, dtype) in enumerate(kinds):
            comparison, memory = measure_group(options, settings, dtype, ranks, 1 / (len(kinds) - number))
            speed = comparison.medians
            best = max(found for name, found in speed.items() if name not in OURS)
            rows += [[ranks, dtype, name, speed[name], memory[name] / 1e6] for name in speed]
            ratios.append((speed.get("luwu", 0.0) / best, speed.get("luwu"), best))
            compared.append(comparison)
        table(["N", "dtype", "side", "tokens/s", "peak MB"], rows)
        worst = min(ratios)
        names = ("ranks", "dtype", "side", "tokens_per_second", "peak_memory_mb")
        details = {"measured": [dict(zip(names, row, strict=True)) for row in rows]}
        decided = all_of(all_dtypes or None, *(comparison.ok for comparison in compared))
        ok = False if options.only_peer else decided
        return result(
            NAME, ours=worst[1], peer=worst[2], ratio=worst[0], bar=BAR, ok=ok, unit="tokens/s", details=details
        )

    return run(NAME, BAR, "tokens/s", measure, options)


if __name__ == "__main__":
    sys.exit(main())
