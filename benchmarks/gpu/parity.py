"""Training on the GPU beside plain torch there: losses, and the same bits twice."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from llama import SMALL, Llama, adapt, texts
from timing import report
from torch import nn

import luwu
from luwu.errors import LuwuError

TOLERANCE = 1e-5
ROWS, TOKENS = 8, 64
DEVICE = "cuda"
STAYING = "4MiB"
"""Room on the GPU for one layer and a half."""

SANITIZER_SECONDS = 120
Losses = list[float]


def model_of(adapters: bool = False) -> Llama:
    """The same values in every process."""
    torch.manual_seed(0)
    model = Llama(SMALL)
    return adapt(model) if adapters else model


def plain(steps: int, passes: int = 1, dtype: torch.dtype = torch.float32, adapters: bool = False) -> Losses:
    """Losses of torch's AdamW on the GPU; with float16, of a float32 master and a scaler, as torch.amp has them."""
    model = model_of(adapters).to(DEVICE)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3, foreach=False)
    scaler = torch.amp.GradScaler(DEVICE, enabled=dtype is torch.float16)
    losses = []
    for step in range(steps):
        total = 0.0
        for index in range(passes):
            with torch.autocast(DEVICE, dtype, enabled=dtype is not torch.float32):
                loss = model(texts(SMALL, ROWS, TOKENS, step * passes + index, DEVICE)) / passes
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(total)
    return losses


@contextmanager
def run_folder(folder: Path) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as path:
        yield Path(path)


def ours(run: Path, steps: range, passes: int = 1, adapters: bool = False, **options: Any) -> Losses:
    """Losses of one run's steps."""
    losses = []
    with luwu.open(run, memory="1GiB") as session:
        model = luwu.parallelize(model_of(adapters), session, device=DEVICE, **options)
        optimizer = luwu.AdamW(model, lr=1e-3)
        for step in steps:
            total = 0.0
            for index in range(passes):
                last = index == passes - 1
                loss = model(texts(SMALL, ROWS, TOKENS, step * passes + index, DEVICE)) / passes
                if last:
                    optimizer.scale(loss).backward()
                else:
                    with luwu.no_sync(model):
                        optimizer.scale(loss).backward()
                total += loss.item()
            optimizer.step()
            losses.append(total)
    return losses


def variants(folder: Path, steps: int) -> dict[str, tuple[Callable[[], Losses], Losses, float]]:
    """Return by name our run, torch's losses, and the tolerance."""
    whole = range(steps)
    once, thrice = plain(steps), plain(steps, passes=3)
    half, adapted = plain(steps, dtype=torch.float16), plain(steps, adapters=True)

    def fresh(**options: Any) -> Losses:
        with run_folder(folder) as run:
            return ours(run, whole, **options)

    def resumed() -> Losses:
        with run_folder(folder) as run:
            return ours(run, range(steps // 2)) + ours(run, range(steps // 2, steps))

    def on_disk() -> Losses:
        with run_folder(folder) as run, run_folder(folder) as activations:
            return ours(run, whole, offload=activations)

    def second_session() -> Losses:
        with run_folder(folder) as run, luwu.open(run, memory="1GiB") as session:
            other = luwu.parallelize(nn.Linear(8, 8), session, device=DEVICE)
            losses = fresh()
            del other  # it lived beside
            return losses

    return {
        "fresh": (fresh, once, TOLERANCE),
        "resumed": (resumed, once, TOLERANCE),
        "micro-batches": (lambda: fresh(micro_batch_size=2), once, TOLERANCE),
        "three passes": (lambda: fresh(passes=3), thrice, TOLERANCE),
        "offload host": (lambda: fresh(offload="host"), once, TOLERANCE),
        "offload disk": (on_disk, once, TOLERANCE),
        "blocks that stay": (lambda: fresh(device_memory=STAYING), once, TOLERANCE),
        "adapters": (lambda: fresh(adapters=True), adapted, TOLERANCE),
        "adapters, blocks that stay": (lambda: fresh(adapters=True, device_memory=STAYING), adapted, TOLERANCE),
        "two sessions": (second_session, once, TOLERANCE),
        "float16": (lambda: fresh(dtype=torch.float16), half, 1e-2),  # autocast rounds elsewhere
    }


def sanitized(folder: Path) -> str:
    """Return the findings of torch's CUDA sanitizer in a short run; empty: none.

    It sees what torch does, and the engine's buffers as torch uses them. The engine's own copies it does not see: those
    are the simulated device's to check.
    """
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import parity; "
        "parity.variants_once(Path(sys.argv[2]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(folder)],
        env={**os.environ, "TORCH_CUDA_SANITIZER": "1"}, capture_output=True, text=True, check=False,
        timeout=SANITIZER_SECONDS,
    )  # fmt: skip
    return ended.stderr[-2000:] if ended.returncode or "CSAN" in ended.stderr else ""


def variants_once(folder: Path) -> None:
    """Three steps, for the sanitizer."""
    with run_folder(folder) as run:
        ours(run, range(3))


def compare(run: Callable[[], Losses], expected: Losses, tolerance: float) -> dict[str, Any]:
    """Run twice: the worst relative difference of losses, and whether both runs had the same bits, or the error."""
    try:
        first, second = run(), run()
    except (LuwuError, RuntimeError) as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    worst = max(abs(one - other) / abs(other) for one, other in zip(first, expected, strict=True))
    return {"worst": worst, "same_bits": first == second, "ok": worst <= tolerance and first == second}


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """Each variant's worst relative difference of losses, and whether a second run had the same bits."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True)  # with warn_only torch takes kernels that add up in any order
    found: dict[str, Any] = {}
    for name, (run, expected, tolerance) in variants(folder, 6 if smoke else 50).items():
        found[name] = compare(run, expected, tolerance)
        report({"variants": found})
    finding = sanitized(folder)
    ok = all(variant["ok"] for variant in found.values()) and not finding
    return {"ok": ok, "variants": found, "sanitizer": finding or "nothing"}
