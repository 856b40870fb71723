"""A batch 8 times larger through micro-batches, against the batch that one micro-batch is, out of core.

The store exceeds the server's budget about four times, so the disk sets the pace of the small batch. The large one is
cut inside each block: it must move the very same bytes, and so learn from more tokens a second. Beside it stands the
large batch at once, for the memory of its worker.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from typing import Any

from common import arguments, result, run, table
from luwu_side import LuwuSide

NAME = "micro_batches"
BAR = "batch 8 times larger: the same bytes pulled and pushed a step, at least 1.5 times the tokens/s"
TIMES = 8
LARGE, SMALL, AT_ONCE = "8x in micro-batches", "1x", "8x at once"


def sides_of(options: Any) -> dict[str, dict[str, Any]]:
    """Settings of each side."""
    layers, memory, steps = (6, 224 << 20, 1) if options.quick else (16, 512 << 20, 2)
    rows = 2
    common = {
        "shape": {"layers": layers, "hidden": 1024, "heads": 16, "seq": 32}, "steps": steps, "warm_up": 2,
        "dtype": "bfloat16", "checkpoint": True, "meta": True, "memory": memory, "folder": str(options.folder),
    }  # fmt: skip
    return {
        LARGE: {**common, "rows": TIMES * rows, "micro_batch_size": rows},
        SMALL: {**common, "rows": rows},
        AT_ONCE: {**common, "rows": TIMES * rows},
    }


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        samples: dict[str, list[dict[str, Any]]] = {}
        with ExitStack() as stack:
            sides = {name: stack.enter_context(LuwuSide(settings)) for name, settings in sides_of(options).items()}
            for side in sides.values():
                side.wait_ready()
            for _ in range(max(3, options.repeats)):
                for name, side in sides.items():
                    samples.setdefault(name, []).append(side.sample()[0])
            for side in sides.values():
                side.stop()
            memory = {name: side.worker_bytes for name, side in sides.items()}
        rates = {
            name: statistics.median(sample["tokens_per_second"] for sample in found) for name, found in samples.items()
        }
        moved = {
            name: sorted({(sample["bytes_pulled"], sample["bytes_pushed"]) for sample in found})
            for name, found in samples.items()
        }
        table(
            ("batch", "tokens/s", "pulled MB a step", "pushed MB a step", "worker MB"),
            [
                [name, rates[name], moved[name][0][0] / 1e6, moved[name][0][1] / 1e6, memory[name] / 1e6]
                for name in samples
            ],
        )
        same_bytes = moved[LARGE] == moved[SMALL] and len(moved[LARGE]) == 1
        ok = same_bytes and rates[LARGE] >= 1.5 * rates[SMALL]
        details = {
            "tokens_per_second": rates, "bytes_pulled_and_pushed": moved, "same_bytes": same_bytes,
            "worker_bytes": memory, "samples": samples,
        }  # fmt: skip
        return result(NAME, ours=rates[LARGE], peer=rates[SMALL], bar=BAR, ok=ok, unit="tokens/s", details=details)

    return run(NAME, BAR, "tokens/s", measure)


if __name__ == "__main__":
    sys.exit(main())
