"""A batch 8 times larger through micro-batches, against the batch that one micro-batch is, out of core.

The store exceeds the server's budget about four times, so the disk sets the pace of the small batch. The large one is
cut inside each block: it must move the very same bytes, and so learn from more tokens a second. Beside it stands the
large batch at once, for the memory of its worker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from kit.common import Row, arguments, result, run, table
from kit.luwu_side import LuwuSide
from kit.sampling import Bar, compare

NAME = "micro_batches"
BAR = "batch 8 times larger: the same bytes pulled and pushed a step, at least 1.5 times the tokens/s"
TIMES = 8
LARGE, SMALL, AT_ONCE = "8x in micro-batches", "1x", "8x at once"
LEAST = Bar(LARGE, SMALL, 1.5)


def sides_of(options: Any) -> dict[str, dict[str, Any]]:
    """Settings of each side."""
    layers, memory = options.size((16, 512 << 20), quick=(6, 224 << 20), check=(1, 224 << 20))
    hidden, steps, rows = options.size(1024, check=128), options.effort(2, quick=1, check=1), 2
    common = {
        "shape": {"layers": layers, "hidden": hidden, "heads": 16, "seq": 32}, "steps": steps, "warm_up": 2,
        "dtype": "bfloat16", "checkpoint": True, "meta": True, "memory": memory, "folder": str(options.folder),
    }  # fmt: skip
    return {
        LARGE: {**common, "rows": TIMES * rows, "micro_batch_size": rows},
        SMALL: {**common, "rows": rows},
        AT_ONCE: {**common, "rows": TIMES * rows},
    }


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    rates, memory, moved = found["tokens_per_second"], found["worker_bytes"], found["bytes_pulled_and_pushed"]
    shown = {name: f"{rates[name]:.0f} tokens/s, a worker {memory[name] / 1e6:.0f} MB" for name in rates}
    large, small, at_once = shown
    same = "the same bytes" if found["same_bytes"] else "**other bytes**"
    mb = ", ".join(f"{count / 1e6:.0f}" for count in moved[large][0])
    yield (
        f"a batch 8 times larger in micro-batches, out of core: {same} a step (pulled, pushed: {mb} MB)",
        shown[large],
        f"the small batch {shown[small]}; the large one at once {shown[at_once]}",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)

    def measure() -> dict[str, Any]:
        samples: dict[str, list[dict[str, Any]]] = {}
        with ExitStack() as stack:
            sides = {name: stack.enter_context(LuwuSide(settings)) for name, settings in sides_of(options).items()}
            for side in sides.values():
                side.wait_ready()

            def take_round() -> dict[str, float]:
                for name, side in sides.items():
                    samples.setdefault(name, []).append(side.sample()[0])
                return {name: found[-1]["tokens_per_second"] for name, found in samples.items()}

            compared = compare(options, take_round, [LEAST], rounds=max(3, options.repeats))
            for side in sides.values():
                side.stop()
            memory = {name: side.worker_bytes for name, side in sides.items()}
        rates = compared.medians
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
        details = {
            "tokens_per_second": rates, "bytes_pulled_and_pushed": moved, "same_bytes": same_bytes,
            "worker_bytes": memory, "samples": samples, "compared": compared.details(),
        }  # fmt: skip
        return result(
            NAME, ours=rates[LARGE], peer=rates[SMALL], ratio=compared.ratio(LEAST), bar=BAR, ok=compared.ok,
            right=same_bytes, unit="tokens/s", details=details,
        )  # fmt: skip

    return run(NAME, BAR, "tokens/s", measure, options)


if __name__ == "__main__":
    sys.exit(main())
