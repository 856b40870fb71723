"""Fine-tuning with adapters: what frozen parameters cost in the store and on the way, and whether losses are peft's.

Bytes are those of a bfloat16 job, the whole run folder with the adapters' states divided by the frozen parameters
alone. Losses are compared on a smaller model in float32, where 1e-5 means something; in bfloat16, where one parameter
that is rounded the other way moves a loss by more, they are shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.common import BenchmarkError, Row, arguments, result, run, table
from kit.processes import Side

NAME = "lora"
BAR = "at most 2.1 bytes in the store per frozen parameter; pushed: the adapters' gradients alone; losses within 1e-5"
MOST_BYTES = 2.1
TOLERANCE = 1e-5
STEPS = 20


def measured(side: Side) -> dict[str, Any]:
    """The one sample of a side."""
    with side:
        side.wait_ready()
        return side.sample()[0]


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    per_parameter = found["store_bytes"] / found["frozen"]
    yield "LoRA in bf16: bytes in the store per frozen parameter", f"{per_parameter:.2f}", "2"
    yield "LoRA: bytes pushed a step", f"{found['pushed_bytes']:.0f}", f"the adapters' {2 * found['adapters']}"


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    small = {"hidden": 256, "layers": 4, "steps": STEPS}
    large = {"dtype": "bfloat16", "steps": 2, "hidden": 1024, "layers": 8}
    if options.size(False, check=True):
        small, large = {"hidden": 64, "layers": 1, "steps": 2}, {}

    def ours(wanted: dict[str, Any]) -> dict[str, Any]:
        return measured(Side("luwu", "ours/lora.py", {**wanted, "folder": str(options.folder)}, threads=1))

    def peers(wanted: dict[str, Any]) -> list[float]:
        # With this Python: the peers' environment has torch, but no peft.
        return measured(Side("peft", "peers/lora.py", wanted, python=Path(sys.executable), threads=1))["losses"]

    def measure() -> dict[str, Any]:
        dtypes = options.size(("float32", "bfloat16"), check=("float32",))
        reference = {dtype: peers({**small, "dtype": dtype}) for dtype in dtypes}
        if options.only_peer:
            table(["dtype", "first", "last"], [[dtype, found[0], found[-1]] for dtype, found in reference.items()])
            raise BenchmarkError("only the peer was asked for")
        measured_here = {dtype: ours({**small, "dtype": dtype}) for dtype in reference}
        losses = {dtype: found["losses"] for dtype, found in measured_here.items()}
        differences = {
            dtype: max(abs(a - b) / abs(b) for a, b in zip(found, reference[dtype], strict=True))
            for dtype, found in losses.items()
        }
        table(
            ["dtype", "peft, first", "peft, last", "luwu, last", "largest relative difference"],
            [[name, found[0], found[-1], losses[name][-1], differences[name]] for name, found in reference.items()],
        )
        bytes_of = ours(large) if large else measured_here["float32"]
        per_frozen = bytes_of["store_bytes"] / bytes_of["frozen"]
        table(
            ["frozen", "adapters", "store bytes per frozen", "pushed a step", "of them adapters'"],
            [
                [
                    bytes_of["frozen"],
                    bytes_of["adapters"],
                    per_frozen,
                    bytes_of["pushed_bytes"],
                    2 * bytes_of["adapters"],
                ]
            ],
        )
        width = 2 if large else 4
        alone = bytes_of["pushed_bytes"] == width * bytes_of["adapters"]  # their sizes need no padding
        return result(
            NAME, ours=per_frozen, peer=MOST_BYTES, bar=BAR,
            ok=per_frozen <= MOST_BYTES, right=alone and differences["float32"] <= TOLERANCE,
            unit="bytes in the store per frozen parameter",
            details={
                **{name: bytes_of[name] for name in ("frozen", "adapters", "store_bytes", "pushed_bytes")},
                "pushes_only_adapters": alone, "differences": differences,
            },
        )  # fmt: skip

    return run(NAME, BAR, "bytes in the store per frozen parameter", measure, options)


if __name__ == "__main__":
    sys.exit(main())
