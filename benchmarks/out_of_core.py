"""A model whose store exceeds the server's budget more than four times: it trains, within the budget, at disk speed.

The batch is small and always the same: the disk and not the arithmetic sets the pace, and the loss must fall. What the
disk allows is the time fio needs for the bytes that a step moved, in the same mix of reads and writes.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from common import arguments, result, run, table
from disk_limit import DiskLimit
from luwu_side import LuwuSide

NAME = "out_of_core"
BAR = "trains; server within its budget plus 128 MiB; at least 80 % of the throughput the disk allows"
CONSTANT_BYTES = 128 << 20  # the interpreter, the code and the rings: what a server takes beside its budget
UNIT = "share of what the disk allows"


def measure_step(side: LuwuSide) -> dict[str, float]:
    """One sample: seconds and loss of a step, bytes that it read from the store and wrote to it."""
    before = dict(side.server_sample)
    sample = side.sample()[0]
    steps = side.server_sample["step"] - before["step"]
    moved = {name: (side.server_sample[name] - before[name]) / steps for name in ("bytes_read", "bytes_written")}
    return {"seconds": sample["seconds"], "loss": sample["losses"][-1], **moved}


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, memory, steps = (8, 256 << 20, 1) if options.quick else (32, 1 << 30, 2)
    settings = {
        "shape": {"layers": layers, "hidden": 1024, "heads": 16, "seq": 32}, "rows": 1, "steps": steps, "warm_up": 2,
        "one_batch": True,
        "dtype": "bfloat16", "checkpoint": True, "meta": True, "memory": memory, "folder": str(options.folder),
    }  # fmt: skip
    states_bytes = 14 * layers * 12 * 1024 * 1024

    def measure() -> dict[str, Any]:
        with LuwuSide(settings) as side:
            side.wait_ready()
            side.sample()
            first = measure_step(side)
            with DiskLimit(
                options.folder,
                read_share=first["bytes_read"] / (first["bytes_read"] + first["bytes_written"]),
                file_bytes=min(states_bytes, 4 << 30),
                seconds=1.0 if options.quick else 3.0,
            ) as limit:
                samples = [{**measure_step(side), "limit": limit.sample()} for _ in range(max(3, options.repeats))]
            side.stop()
        for sample in samples:
            sample["allowed"] = (sample["bytes_read"] + sample["bytes_written"]) / sample["limit"]
            sample["share"] = sample["allowed"] / sample["seconds"]
        share = statistics.median(sample["share"] for sample in samples)
        columns = ("seconds", "allowed", "share", "bytes_read", "bytes_written", "loss")
        table(columns, [[sample[column] for column in columns] for sample in samples])
        print(
            f"server {side.server_bytes / 1e6:.0f} MB, budget {memory / 1e6:.0f} MB, states {states_bytes / 1e6:.0f} MB"
        )
        within = side.server_bytes <= memory + CONSTANT_BYTES
        learning = samples[-1]["loss"] < first["loss"]
        details = {
            "samples": samples,
            "server_bytes": side.server_bytes,
            "budget_bytes": memory,
            "states_bytes": states_bytes,
            "within_budget": within,
            "loss_falls": learning,
        }
        ok = share >= 0.8 and within and learning
        return result(NAME, ours=share, peer=1.0, bar=BAR, ok=ok, unit=UNIT, details=details)

    return run(NAME, BAR, UNIT, measure)


if __name__ == "__main__":
    sys.exit(main())
