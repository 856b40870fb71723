"""A model whose store exceeds the server's budget more than four times: it trains, within the budget, at disk speed.

The batch is small and always the same: the disk and not the arithmetic sets the pace, and the loss must fall. What the
disk allows is the time fio needs for the bytes that a step moved, in the same mix of reads and writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from kit.common import NotInstalledError, Options, Row, arguments, result, run, table
from kit.disk_limit import DiskLimit
from kit.luwu_side import LuwuSide
from kit.sampling import Bar, compare

NAME = "out_of_core"
BAR = "trains; server within its budget plus 128 MiB; at least 80 % of the throughput the disk allows"
CONSTANT_BYTES = 128 << 20  # the interpreter, the code and the rings: what a server takes beside its budget
UNIT = "share of what the disk allows"
LEAST = Bar("allowed", "seconds", 0.8)


def measure_step(side: LuwuSide) -> dict[str, float]:
    """Return a sample: seconds and loss of a step, bytes that it read from the store and wrote to it."""
    before = dict(side.server_sample)
    sample = side.sample()[0]
    steps = side.server_sample["step"] - before["step"]
    moved = {name: (side.server_sample[name] - before[name]) / steps for name in ("bytes_read", "bytes_written")}
    return {"seconds": sample["seconds"], "loss": sample["losses"][-1], **moved}


def disk_limit(options: Options, stack: ExitStack, first: dict[str, float], states_bytes: int) -> Callable[[], float]:
    """Return a function that samples the disk's bytes a second in the first step's mix; 1 where --check has no fio."""
    try:
        limit = stack.enter_context(
            DiskLimit(
                options.folder,
                read_share=first["bytes_read"] / (first["bytes_read"] + first["bytes_written"]),
                file_bytes=min(states_bytes, 4 << 30),
                seconds=options.effort(3.0, quick=1.0, check=0.2),
            )
        )
    except NotInstalledError as error:
        options.leave_out("fio", error)
        return lambda: 1.0
    return limit.sample


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    shares = sorted(sample["share"] for sample in found["samples"])
    yield (
        f"training with {found['states_bytes'] / found['budget_bytes']:.1f} times the budget on disk",
        f"{shares[len(shares) // 2]:.0%} of what fio reaches; server {found['server_bytes'] / 1e6:.0f} MB",
        f"best of fio; budget {found['budget_bytes'] / 1e6:.0f} MB",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    layers, memory = options.size((32, 1 << 30), quick=(8, 256 << 20), check=(4, 64 << 20))
    hidden, steps = options.size(1024, check=256), options.effort(2, quick=1, check=1)
    settings = {
        "shape": {"layers": layers, "hidden": hidden, "heads": 16, "seq": 32}, "rows": 1, "steps": steps, "warm_up": 2,
        "one_batch": True,
        "dtype": "bfloat16", "checkpoint": True, "meta": True, "memory": memory, "folder": str(options.folder),
    }  # fmt: skip
    states_bytes = 14 * layers * 12 * hidden * hidden

    def measure() -> dict[str, Any]:
        samples: list[dict[str, float]] = []
        with LuwuSide(settings) as side:
            side.wait_ready()
            side.sample()
            first = measure_step(side)
            with ExitStack() as stack:
                limit = disk_limit(options, stack, first, states_bytes)

                def take_round() -> dict[str, float]:
                    sample = {**measure_step(side), "limit": limit()}
                    sample["allowed"] = (sample["bytes_read"] + sample["bytes_written"]) / sample["limit"]
                    sample["share"] = LEAST.ratio(sample)
                    samples.append(sample)
                    return sample

                compared = compare(options, take_round, [LEAST], rounds=max(3, options.repeats))
            side.stop()
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
            "compared": compared.details(),
        }
        return result(
            NAME, ours=compared.ratio(LEAST), peer=1.0, bar=BAR, ok=compared.ok, right=within and learning, unit=UNIT,
            details=details,
        )  # fmt: skip

    return run(NAME, BAR, UNIT, measure, options)


if __name__ == "__main__":
    sys.exit(main())
