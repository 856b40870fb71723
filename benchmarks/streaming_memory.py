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
from pathlib import Path
from typing import Any

from common import BenchmarkError, arguments, result, run, table
from processes import HERE, environment

NAME = "streaming_memory"
BAR = (
    "the peak of import, export, export --dcp, import of dcp and generate grows less than 3 % in a model 4 times as "
    "deep"
)
OURS = ("import", "export", "export --dcp", "import of dcp", "generate")
PEER = "transformers"
DEEPER = 4


def measure_one(operation: str, settings: dict[str, Any]) -> dict[str, float]:
    """Peak bytes and seconds of one operation."""
    found = subprocess.run(
        [sys.executable, str(HERE / "ours" / "streaming.py"), operation, json.dumps(settings)], env=environment(1),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode != 0:
        raise BenchmarkError(f"{operation} ended with {found.returncode}:\n{found.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return measured


def measure_depth(shape: dict[str, int], folder: Path, operations: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Every operation on a model of this shape; the files are removed afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        settings = {"shape": shape, "folder": scratch}
        measure_one("make", settings)
        measured = {operation: measure_one(operation, settings) for operation in operations}
        measured["checkpoint"] = {
            "peak_bytes": float(sum(path.stat().st_size for path in Path(scratch, "in").glob("*.safetensors")))
        }
        shutil.rmtree(scratch, ignore_errors=True)
    return measured


def main() -> int:
    """Measures, prints, returns the exit status."""
    options = arguments(__doc__ or NAME)
    # More than the budget of generate, in either depth.
    hidden, layers = options.size((512, 12), quick=(256, 8), check=(64, 1))
    operations = (PEER,) if options.only_peer else (*OURS, PEER)

    def measure() -> dict[str, Any]:
        shapes = [{"hidden": hidden, "layers": depth, "vocabulary": 4096} for depth in (layers, DEEPER * layers)]
        shapes = options.effort(shapes, check=shapes[:1])
        measured = [measure_depth(shape, options.folder, operations) for shape in shapes]
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

    return run(NAME, BAR, "growth", measure, options)


if __name__ == "__main__":
    sys.exit(main())
