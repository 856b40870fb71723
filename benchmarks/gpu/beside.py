"""Matrix products beside copies in both directions: what the copies take from them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from copies import registered
from timing import gpu_seconds

from luwu import _native

LEAST = 0.99
SIDE = 8192
BLOCK_BYTES = 1 << 28
BLOCKS = 4
CUDA = "libcuda.so.1"


class Fabric:
    """A server that answers at once: every block lies in its place in the window."""

    def pull(self, block: int, alone: bool) -> int:
        """Its handle is the block's number."""
        return block

    def wait(self, handle: int) -> int:
        """The block's offset in the window."""
        return handle * BLOCK_BYTES

    def release(self, block: int) -> None:
        """Nothing is held."""

    def push(self, block: int, arena_offset: int) -> int:
        """Taken at once."""
        return block


class Traffic:
    """Pulls and pushes blocks, one after the other, until it is stopped."""

    def __init__(self) -> None:
        window, arena = (registered_later(BLOCKS * BLOCK_BYTES) for _ in range(2))
        self._engine = _native.CopyEngine(
            Fabric(), CUDA, 0, [BLOCK_BYTES] * BLOCKS, window, arena, 3, [], torch.cuda.empty_cache
        )
        self._stream = torch.cuda.Stream()
        self._ends = False
        self.copied_bytes = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends = True
        self._thread.join()
        self._engine.settle()

    def _run(self) -> None:
        stream = self._stream.cuda_stream
        while not self._ends:
            for block in range(BLOCKS):
                self._engine.request(block, False)
                self._engine.gradient(block, stream)
                self._engine.push(block, stream)
                self._engine.take(block, stream)
                self._engine.release(block, stream)
                self.copied_bytes += 2 * BLOCK_BYTES
            self._engine.settle()
            self._engine.answered()


def registered_later(nbytes: int) -> Any:
    """Shared memory that the engine will register."""
    return registered(nbytes, lock=False).numpy()


def measure(*, smoke: bool, folder: Path) -> dict[str, Any]:
    """The rate of products alone and beside copies, in turn."""
    repeats = 20 if smoke else 200
    left = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    alone = gpu_seconds(lambda: left @ left, repeats)
    with Traffic() as traffic:
        beside = gpu_seconds(lambda: left @ left, repeats)
    again = gpu_seconds(lambda: left @ left, repeats)
    ratio = min(alone, again) / beside
    return {
        "ok": None if smoke else ratio >= LEAST, "ratio": ratio, "copied_bytes": traffic.copied_bytes,
        "seconds": {"alone": [alone, again], "beside": beside},
    }  # fmt: skip
