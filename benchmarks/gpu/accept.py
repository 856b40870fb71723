"""Acceptance of the GPU path, on a machine with a GPU: what no simulated device can show.

Each part runs in a process of its own with a deadline, plain torch first, and the result file is written after each.
What a part has measured before it fails, or its deadline ends it, is kept.
The machine needs Python, torch with CUDA, and luwu; nothing is fetched. `--smoke` takes three minutes and decides
nothing about speed. Figures of time are wrong where others use the GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Part:
    """A module of this folder whose `measure` returns figures, and `ok` where there is a bar."""

    name: str
    bar: str
    smoke_seconds: float
    full_seconds: float


PARTS = (
    Part("machine", "none: torch alone, and what the bus and the processors of the GPU do", 40, 60),
    Part("copies", "registered shared memory at least 0.95 of page-locked memory, each way and both", 30, 90),
    Part("parity", "losses within 1e-5 of plain torch, two runs the same bits, no finding of a sanitizer", 90, 420),
    Part("beside", "matrix products beside full push and pull at least 0.99 of their rate alone", 30, 120),
    Part("depth", "the GPU's peak at 8, 16 and 32 blocks, less checkpoints, within 1 %", 60, 240),
    Part("disk", "with a quarter of the states in memory at least 0.9 of what the disk allows", 60, 300),
    Part("adapters", "8B parameters at 16k tokens a step: at least 0.9 of the frozen model held whole", 60, 600),
    Part("peers", "at least 1.5 times the faster of FSDP2 and DeepSpeed, both offloaded to the host's memory", 90, 600),
    Part("step_time", "at least 0.95 of fused AdamW on the GPU at the most tokens; waiting under 5 %", 90, 600),
)


def run_part(part: Part, smoke: bool, folder: Path) -> dict[str, Any]:
    """The part's figures, or the error that ended it."""
    limit = part.smoke_seconds if smoke else part.full_seconds
    command = [sys.executable, str(HERE / "accept.py"), "--part", part.name, "--folder", str(folder)]
    started = time.monotonic()
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # the same bits in every run
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            ended = subprocess.run(
                [*command, *(["--smoke"] if smoke else [])], env=environment, stdout=output, stderr=errors,
                timeout=limit, check=False,
            )  # fmt: skip
            failed = {} if ended.returncode == 0 else {"ok": False, "error": tail_of(errors)}
        except subprocess.TimeoutExpired:
            failed = {"ok": False, "error": f"took longer than {limit:.0f} s"}
        output.seek(0)
        lines = [line for line in output if line.startswith("{")]
    found = json.loads(lines[-1]) if lines else {}
    return {**found, **failed, "bar": part.bar, "seconds": round(time.monotonic() - started, 1)}


def tail_of(file: IO[str]) -> str:
    """The last 2000 characters."""
    file.seek(0)
    return file.read()[-2000:]


def accept(chosen: list[Part], smoke: bool, folder: Path, out: Path) -> bool:
    """Run the parts in their order; true unless one missed its bar."""
    results: dict[str, Any] = {"smoke": smoke, "parts": {}}
    for part in chosen:
        found = run_part(part, smoke, folder)
        results["parts"][part.name] = found
        out.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{part.name}: {found.get('ok')} ({part.bar})\n  {json.dumps(found)}", flush=True)
    return all(found.get("ok") is not False for found in results["parts"].values())


def main() -> int:
    """Returns the exit status: 0, 1 where a part missed its bar, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small sizes: does everything run, and right?")
    parser.add_argument("--only", nargs="*", choices=[part.name for part in PARTS], help="these parts alone")
    parser.add_argument("--out", type=Path, default=Path("accept.json"), help="result file")
    parser.add_argument("--folder", type=Path, default=Path("accept-runs"), help="folder for stores, on a fast disk")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.part is not None:
        found = importlib.import_module(options.part).measure(smoke=options.smoke, folder=options.folder)
        print(json.dumps(found), flush=True)
        return 0
    if not torch.cuda.is_available():
        print(
            "accept: expected a GPU that torch can use, found none; run this where there is one",
            file=sys.stderr,
        )
        return 2
    chosen = [part for part in PARTS if not options.only or part.name in options.only]
    return 0 if accept(chosen, options.smoke, options.folder, options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
