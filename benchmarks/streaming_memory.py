"""Peak memory of what streams a model through: import, export and generation, for a model and one four times as deep.

Each operation runs in a process of its own, whose peak (VmHWM) holds the interpreter and torch as well. The peer is
what people do otherwise: load the checkpoint with transformers and save it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.common import PROGRAMS, BenchmarkError, Options, Row, arguments, result, run, table
from kit.processes import environment

NAME = "streaming_memory"
BAR = (
    "the peak of import, export, export --dcp, import of dcp and generate grows less than 3 % in a model 4 times as "
    "deep"
)
OURS = ("import", "export", "export --dcp", "import of dcp", "generate")
PEER = "transformers"
DEEPER = 4


def measure(operations: Sequence[str], settings: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Measure peak bytes and seconds of operations, one after the other in one process."""
    found = subprocess.run(
        [sys.executable, str(PROGRAMS / "ours" / "streaming.py"), json.dumps(settings), *operations],
        env=environment(1), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode != 0:
        raise BenchmarkError(f"{', '.join(operations)} ended with {found.returncode}:\n{found.stderr[-2000:]}")
    lines = [json.loads(line) for line in found.stdout.splitlines()[-len(operations) :]]
    return dict(zip(operations, lines, strict=True))


def measure_depth(
    options: Options, shape: dict[str, int], operations: tuple[str, ...]
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Measure every operation on a model of this shape; the files are removed afterwards.

    Each has a process of its own, except with --check, where peaks mean nothing.
    """
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        settings = {"shape": shape, "folder": scratch}
        every = ("make", *operations)
        measured = {}
        for together in options.effort([(operation,) for operation in every], check=[every]):
            measured |= measure(together, settings)
        measured["checkpoint"] = {
            "peak_bytes": float(sum(path.stat().st_size for path in Path(scratch, "in").glob("*.safetensors")))
        }
        shutil.rmtree(scratch, ignore_errors=True)
    return measured


def rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of docs/figures.md, from the details of a result."""
    growth = {row["operation"]: row["growth"] for row in found["measured"]}
    peer, checkpoint = growth.pop("transformers"), growth.pop("checkpoint")
    yield (
        f"peak memory of import, export and generate, a model {1 + checkpoint:.1f} times as large",
        f"at most {max(growth.values()):.1%} more",
        f"transformers {peer:.0%} more",
    )


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    # Both depths are larger than the budget of generate.
    hidden, layers = options.size((512, 12), quick=(256, 8), check=(64, 1))
    operations = (PEER,) if options.only_peer else (*OURS, PEER)

    def measure_all() -> dict[str, Any]:
        shapes = [{"hidden": hidden, "layers": depth, "vocabulary": 4096} for depth in (layers, DEEPER * layers)]
        shapes = options.effort(shapes, check=shapes[:1])
        measured = [measure_depth(options, shape, operations) for shape in shapes]
        shallow, deep = measured[0], measured[-1]
        rows = []
        for name in ("checkpoint", *operations):
            few, many = shallow[name]["peak_bytes"] / 1e6, deep[name]["peak_bytes"] / 1e6
            rows.append([name, few, many, many / few - 1, deep[name].get("seconds", 0.0)])
        table(("", f"{layers} blocks MB", f"{DEEPER * layers} blocks MB", "growth", "seconds"), rows)
        growth = {row[0]: row[3] for row in rows}
        ours = None if options.only_peer else max(growth[name] for name in OURS)
        names = ("operation", "shallow_mb", "deep_mb", "growth", "deep_seconds")
        return result(
            NAME, ours=ours, peer=growth[PEER], bar=BAR, ok=ours is not None and ours < 0.03, unit="growth",
            details={"measured": [dict(zip(names, row, strict=True)) for row in rows]},
        )  # fmt: skip

    return run(NAME, BAR, "growth", measure_all, options)


if __name__ == "__main__":
    sys.exit(main())
